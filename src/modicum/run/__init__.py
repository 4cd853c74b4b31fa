"""Running chains: chunks, threads, prefetched rows, progress, checkpoints."""
