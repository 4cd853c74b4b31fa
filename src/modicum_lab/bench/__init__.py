"""`modicum bench`: Modicum beside what a user would pick instead, on the same rows, in one run.

From the ground up: `tables`, `process`, `machine` know nothing of samplers; `problems` make rows,
a model and a reference posterior; `contenders` sample them, one small function each;
`measurements` runs each contender in a process of its own; `accuracy` and `limits` say what the
figures mean; `report` and `pictures` show them. `suite` is the order of the day. `parts` times
Modicum's own parts.
"""
