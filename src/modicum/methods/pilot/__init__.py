"""The pilot study: frozen stages from an anchor to residuals, which methods on some rows read.

`anchored_proxy` expands the rows about an anchor, `study` weights them (`weigh`) and evaluates
residuals of a sample of them (`study_rows`); a method then chooses its subsample and makes its
plan. Nobody changes a stage.
"""
