"""Posteriors that are known without draws: sums over a grid, and normals given what is on it."""

import numpy as np


def shares(logs):
    """Return the probability of each point of an even grid, from log-densities."""
    weight = np.exp(np.asarray(logs) - np.max(logs))
    return weight / weight.sum()


def moments(logs, *values):
    """Return means and sds of quantities whose values broadcast to the grid."""
    p = shares(logs)
    means = np.array([np.sum(p * value) for value in values])
    return means, np.sqrt([np.sum(p * value**2) for value in values] - means**2)


def mixed(logs, means, variances):
    """Return means and sds of quantities with moments (point, quantity) at each point of a grid."""
    p, means = shares(logs), np.asarray(means)
    mean = p @ means
    return mean, np.sqrt(p @ (means**2 + variances) - mean**2)


def normal_given(XX, Xy, precisions):
    """Return log-density, means and covariances of normal coefficients at each point of a grid.

    X'X and X'y are in units of the noise's variance; the prior precisions are (point, coefficient).
    """
    covariance = np.linalg.inv(XX + precisions[:, :, None] * np.eye(precisions.shape[1]))
    mean = np.sum(covariance * Xy[..., None, :], axis=-1)
    logs = np.log(precisions).sum(axis=1) + np.linalg.slogdet(covariance)[1]
    return (logs + np.sum(mean * Xy, axis=1)) / 2, mean, covariance


def away(ours, mean, sd):
    """Return how far the means and sds of a table are from known ones, in posterior sds."""
    return float(max((np.abs(ours["mean"] - mean) / sd).max(), np.abs(ours["sd"] / sd - 1).max()))
