"""What a checkpoint is: families, the facts of a target or a draft, the tensors that it must hold.

`rules`, `memory` and the runtime read these facts. They come from headers and configs alone; nothing here judges them.
"""
