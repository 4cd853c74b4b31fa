"""What a posterior is checked, compared and asked by: beyond the draws themselves."""
