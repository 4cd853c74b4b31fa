"""Records are packed, copied to the host as a whole, and unpacked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from modicum.run import iterations


def some_record(slots, chains=3):
    rng = np.random.default_rng(1)
    return {
        ("position",): rng.normal(size=(chains, slots, 2)),
        ("n_steps", "rows"): rng.integers(0, 9, (chains, slots, 2)),
    }


@pytest.mark.parametrize("count", [0, 3, 60, 64])
@pytest.mark.parametrize("left", [iterations.MOST_PINNED, 0])
def test_the_beginning_of_a_record_arrives(count, left, x64):
    record, pages = some_record(64), iterations.PinnedPages(left)
    here = pages.arrived(pages.send(jax.tree.map(jnp.asarray, record)), count)
    for names, values in record.items():
        np.testing.assert_array_equal(here[names], values[:, :count])
        assert here[names].dtype == values.dtype
        # neither few slots nor a run that has used its share keep many pages
        assert here[names].flags.owndata == (left == 0 or count <= 32)
    assert (left - pages.left > 0) == (left > 0 and count > 32)


def test_pages_are_reserved_and_given_back(x64, monkeypatch):
    sent = []
    monkeypatch.setattr(iterations, "RESERVED", 1000)
    pages = iterations.PinnedPages(left=4_500)
    monkeypatch.setattr(pages, "send", lambda piece: sent.append(piece) or piece)
    pages.reserve(2_500)
    assert [piece["piece",].nbytes for piece in sent] == [1000] * 3
    pages.reserve(10**9)  # no more than a run may use
    assert len(sent) == 3 + 5
    assert pages.left == 4_500


def test_parts_are_joined_by_iterations_and_groups_by_chains():
    one, two = ({"lp": np.full((2, n), float(n))} for n in (3, 4))
    assert iterations.joined([one, two])["lp"].tolist() == [[3.0] * 3 + [4.0] * 4] * 2
    assert iterations.joined([]) == {}
    both = iterations.side_by_side([[one, two], [one, two]])
    assert [part["lp"].shape for part in both] == [(4, 3), (4, 4)]


def test_numbers_are_packed_by_type_and_unpacked_by_name(x64):
    draw = {
        "position": jnp.arange(3.0),
        "lp": jnp.asarray(-1.5),
        "n_steps": jnp.asarray(4),
        "energy": jnp.asarray(2.5),
        "diverging": jnp.asarray(True),
    }
    whole = {names: np.asarray(v)[None, None] for names, v in iterations.packed(draw).items()}
    assert set(whole) == {("position",), ("energy", "lp"), ("n_steps",), ("diverging",)}
    apart = iterations.unpacked(whole)
    assert set(apart) == set(draw)
    for name, values in draw.items():
        np.testing.assert_array_equal(apart[name][0, 0], values)
        assert apart[name].dtype == values.dtype
