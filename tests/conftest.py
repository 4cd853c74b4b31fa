"""Order the tests and mark the quick ones; the root conftest.py has the settings."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPILING = (  # folders and files with tests that run chains or compile much
    *("digest", "kernels", "methods", "run", "traps"),
    *("test_sample.py", "test_cli.py", "test_readme.py", "test_extending.py", "test_progress.py"),
    *("test_taylor.py", "test_likelihood_estimates.py", "test_bounds.py"),
    "test_networks.py",
    *("test_constraints.py", "test_own.py", "test_from_numpyro.py", "test_integrated.py"),
    *("test_coded_rows.py", "test_sampling.py", "test_effects.py", "test_sklearn.py"),
    *("test_fit.py", "test_fit_groups.py"),
)
LONGEST = (  # the longest files: workers start with them, so that none runs alone at the end
    *("models/test_partial_outcomes.py", "test_extending.py", "models/test_integrated.py"),
    *("traps/test_guards.py", "passes/test_mode.py", "test_golden.py"),
    *("kernels/test_energy_conserving.py", "traps/test_priors.py", "methods/test_nested_draws.py"),
    *("models/families/test_densities.py", "methods/test_stochastic_gradient.py"),
    *("posterior/test_predictive.py", "models/test_from_numpyro.py", "passes/test_on_numpy.py"),
    *("posterior/test_effects.py", "traps/test_modes.py", "kernels/test_stochastic_gradient.py"),
    *("kernels/test_fused.py", "traps/test_families.py", "traps/test_interrupt.py"),
    *("traps/test_posterior.py", "methods/test_choice.py", "methods/test_hmc_ecs.py"),
    *("posterior/test_leave_one_out.py", "methods/test_hmc_ecs_signed.py"),
    *("methods/test_certainty.py", "methods/test_level_curves.py", "posterior/test_report.py"),
    *("traps/test_cli.py", "posterior/test_simulate.py", "models/test_bounded_priors.py"),
)
LAST = (  # files that clear compiled code, which other files might have used; the longest first
    *("methods/test_ecs_tuning.py", "kernels/test_designs.py"),
    *("run/test_memory.py", "test_patching.py", "test_runtime.py"),
)
SLOW_EXAMPLES = {  # docstrings whose fits are covered by quick tests as well
    *("modicum.sklearn.PoissonRegressor", "modicum.sklearn.Regressor"),
    *("modicum.posterior.group_effects.effects", "modicum.posterior.loo.loo"),
    *("modicum.posterior.comparison.compare", "modicum.digest.digest.digest"),
    *("modicum.models.from_numpyro.from_numpyro", "modicum.models.own.Model"),
}


def pytest_collection_modifyitems(items):
    """Put the longest files first; mark tests that run no chain and compile little as `unit`."""
    places = {HERE / name: k for k, name in enumerate((*LONGEST, "the others", *LAST))}
    items.sort(key=lambda item: places.get(item.path, len(LONGEST)))
    for item in items:
        if item.name in SLOW_EXAMPLES:
            item.add_marker(pytest.mark.slow)
        if not item.path.is_relative_to(HERE) or item.get_closest_marker("slow"):
            continue
        if not set(item.path.relative_to(HERE).parts) & set(COMPILING):
            item.add_marker(pytest.mark.unit)
