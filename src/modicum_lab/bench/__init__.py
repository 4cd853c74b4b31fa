"""`modicum bench`: compare Modicum with alternative libraries on the same rows, in one run.

From the bottom up: `tables`, `process` and `machine` do not depend on samplers; `problems` make
rows, a model and a reference posterior; `contenders` sample them, one small function each;
`measurements` runs each contender in a separate process; `accuracy` and `limits` judge the
results; `report` and `pictures` show them. `suite` plans and runs everything. `parts` times
Modicum's own parts.
"""
