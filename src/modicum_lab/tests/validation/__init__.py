"""Answers of others: posteriordb's draws, NumPyro's, and long runs on real tables."""
