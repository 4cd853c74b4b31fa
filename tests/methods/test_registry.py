"""One list of methods gives names, help texts and error messages."""

import pytest

import modicum as mo
from modicum.methods import DEFAULT, METHODS, list_methods, resolve


def test_every_method_is_there_by_name_and_in_words():
    assert all(cls.name == name for name, cls in METHODS.items())
    assert len({cls.summary for cls in METHODS.values()}) == len(METHODS)
    lines = list_methods().splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS)
    assert all(len(line) < 90 for line in lines)
    assert DEFAULT in METHODS


@pytest.mark.parametrize("name", METHODS)
def test_a_name_makes_the_method_with_its_default_settings(name):
    method = resolve(name)
    assert type(method) is METHODS[name]
    assert resolve(method) is method
    assert resolve(type(method)) == method


def test_classes_are_exported_by_the_package():
    assert all(getattr(mo, cls.__name__) is cls for cls in METHODS.values())


def test_a_misspelt_name_is_answered_with_the_right_one():
    with pytest.raises(mo.SettingError, match=r"did you mean 'hmc-ecs'.*the methods are .*svrg-ld"):
        resolve("hmc_ecs")


def test_both_subsampling_methods_call_what_moves_the_parameters_inner():
    assert mo.HMCECS(inner="nuts").inner == mo.FlyMC(inner="nuts").inner
