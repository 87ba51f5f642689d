"""Which pairs the runtime serves: the table of rules, what a rule looks at, and the verdict.

`paceline check` and `serve`, the webhook and the inspect Job ask the same table. A rule knows facts and options, no file.
"""
