"""`modicum bench`: Modicum beside what a user would pick instead, on the same rows, in one run.

Rooms, from the ground up: `tables`, `process`, `memory`, `machine` know nothing of samplers;
`problems` make rows, a model and a reference posterior; `contenders` sample them, one small
function each; `measuring` runs each contender in a process of its own; `judgement` and `limits`
say what the figures mean; `report` and `pictures` show them. `suite` is the order of the day.
"""
