import sys
from pathlib import Path

# the chain with known answers lies beside the tests
sys.path.insert(0, str(Path(__file__).parent))
