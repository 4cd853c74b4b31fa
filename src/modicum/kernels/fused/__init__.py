"""HMC-ECS with each chain as a single GPU program (Pallas)."""
