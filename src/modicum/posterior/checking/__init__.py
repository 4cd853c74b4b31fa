"""Checks of a posterior that need the model or the rows: prediction, evidence, sensitivity."""
