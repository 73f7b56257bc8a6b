import importlib.metadata

import pytest

from divevlm.registry import Registry


@pytest.fixture
def registry():
    tools = Registry("tool")
    tools.add("hammer", "math:floor")
    tools.register("saw")(len)
    return tools


def test_entries_are_found_and_listed(registry):
    assert registry.get("saw") is len
    assert list(registry) == ["hammer", "saw"]
    assert "saw" in registry
    assert len(registry) == 2


def test_lazy_entries_are_imported_when_asked_for(registry):
    registry.add("broken", "no_such_module:thing")
    assert list(registry) == ["broken", "hammer", "saw"]
    assert registry.get("hammer")(1.7) == 1
    with pytest.raises(ModuleNotFoundError):
        registry.get("broken")


def test_an_unknown_name_is_answered_with_the_nearest(registry):
    with pytest.raises(ValueError, match=r"^tool must be one of hammer, saw, got 'Hamer': did you mean 'hammer'\?$"):
        registry.get("Hamer")
    with pytest.raises(ValueError, match=r"got 'xyz'$"):
        registry.get("xyz")


@pytest.mark.parametrize("name", ["saw", "hammer"])
def test_duplicates_are_refused(registry, name):
    with pytest.raises(ValueError, match=f"name must be new, got '{name}'"):
        registry.add(name, len)


@pytest.mark.parametrize("name", ["", "Big", "two words", "-x", "x-"])
def test_bad_names_are_refused(registry, name):
    with pytest.raises(ValueError, match="name must be lower-case words"):
        registry.add(name, len)


def test_bad_entries_are_refused(registry):
    with pytest.raises(ValueError, match="entry must be a thing or 'module:attribute', got 'math'"):
        registry.add("drill", "math")


def plugins(monkeypatch, *points):
    def entry_points(group):
        return [importlib.metadata.EntryPoint(name, value, group) for name, value in points if group == "divevlm.tools"]

    monkeypatch.setattr("divevlm.registry.entry_points", entry_points)


def test_plugins_add_entries(registry, monkeypatch):
    plugins(monkeypatch, ("plane", "math:ceil"))
    assert registry.get("plane")(1.2) == 2
    assert list(registry) == ["hammer", "plane", "saw"]


def test_plugins_do_not_replace_entries(registry, monkeypatch):
    plugins(monkeypatch, ("saw", "math:ceil"))
    with pytest.raises(ValueError, match="name must be new, got 'saw'"):
        list(registry)
