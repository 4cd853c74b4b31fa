"""Print environments in which NumPy, OpenBLAS and XLA compute as on other processors.

Each line is one set of variables for `env`; `make test-processors` runs the tests in each. Sums
and products then differ in their last digits, on which no test may depend.
"""

import platform

from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

PLAIN_NUMPY = "NPY_DISABLE_CPU_FEATURES=" + ",".join(
    feature for feature in __cpu_dispatch__ if __cpu_features__[feature]
)
if platform.machine() in ("x86_64", "AMD64"):
    print("OPENBLAS_CORETYPE=Haswell XLA_FLAGS=--xla_cpu_max_isa=AVX2")
    print(f"OPENBLAS_CORETYPE=Nehalem XLA_FLAGS=--xla_cpu_max_isa=SSE4_2 {PLAIN_NUMPY}")
else:
    print(f"OPENBLAS_CORETYPE=ARMV8 {PLAIN_NUMPY}")
print("XLA_FLAGS=--xla_backend_optimization_level=3")
