"""What a model takes on a device, from facts alone: the bytes of every part, and the plan that holds them all.

`paceline plan`, admission and the engine use this arithmetic. It touches no device.
"""
