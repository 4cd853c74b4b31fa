"""The list of methods gives names, help and errors."""

from dataclasses import fields, replace

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
    assert type(method) is METHODS[name] is getattr(mo, METHODS[name].__name__)
    assert resolve(method) is method
    assert resolve(type(method)) == method


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_is_checked_and_the_sentence_names_it(name):
    made = METHODS[name]()
    for field in fields(made):
        for nonsense in (object(), "nonsense", -0.5):
            if nonsense != -0.5 or field.name not in ("centre", "start", "anchor"):
                with pytest.raises(mo.SettingError) as caught:
                    replace(made, **{field.name: nonsense})
                text = str(caught.value)
                assert field.name in text
                assert text.endswith(".")
                assert "\n" not in text
