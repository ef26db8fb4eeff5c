"""What is known of the cluster, when lists and events come in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from operator_objects import KEY, model_pool

from aegaeon_operator.kube.store import Store
from aegaeon_operator.reconcile.cluster.facts import ChildKey


def at(version: int, name: str = "red", uid: str = "one") -> dict[str, Any]:
    body = model_pool(name, "llama")
    body["metadata"] |= {"resourceVersion": str(version), "uid": uid}
    return body


def names(store: Store) -> list[str]:
    return [one["metadata"]["name"] for one in store.of_pool(KEY)]


def test_a_recreated_object_stays_when_the_deletion_of_the_first_arrives_late() -> None:
    store = Store()
    store.put(at(1))
    store.put(at(3, uid="another"))
    assert store.remove(at(2)) == set()
    assert names(store) == ["red"]


def test_objects_created_during_a_list_stay() -> None:
    store = Store()
    store.put(at(11))
    assert store.keep_only("ModelPool", None, [], version=10) == set()
    assert names(store) == ["red"]
    assert store.keep_only("ModelPool", None, [], version=11) == {KEY}
    assert names(store) == []


def test_objects_deleted_during_a_list_do_not_reappear() -> None:
    store = Store()
    store.put(at(1))
    assert store.remove(at(11)) == {KEY}
    assert store.put(at(1)) == set()
    assert names(store) == []
    assert store.put(at(12, uid="another")) == {KEY}


def test_an_answer_to_a_status_is_news_where_something_else_has_changed() -> None:
    store = Store()
    store.put(at(1))
    assert store.put_status(at(2) | {"status": {"served": 1}}) == set()
    changed = model_pool("red", "llama", "qwen")
    changed["metadata"] |= {"resourceVersion": "4", "uid": "one"}
    assert store.put_status(changed) == {KEY}
    changed["metadata"]["resourceVersion"] = "3"
    assert store.put(changed) == set()


def test_a_list_of_one_namespace_leaves_others_unchanged() -> None:
    store = Store()
    store.put(at(1))
    assert store.keep_only("ModelPool", "elsewhere", [], version=5) == set()
    assert names(store) == ["red"]


Happening = tuple[str, int]


@given(st.permutations([("put", 1), ("put", 2), ("gone", 3), ("put", 4), ("list", 2), ("list", 3), ("list", 5)]))
def test_whatever_the_order_of_events_the_last_list_wins(order: list[Happening]) -> None:
    """An object is made (1), changed (2), deleted (3) and made anew (4); lists tell what was there at a version."""
    store = Store()
    for what, version in [*order, ("list", 5)]:
        if what == "put":
            store.put(at(version))
        elif what == "gone":
            store.remove(at(version))
        else:
            there = [] if version == 3 else [at(min(version, 4))]
            for one in there:
                store.put(one)
            store.keep_only("ModelPool", None, [ChildKey.of(one) for one in there], version)
    assert names(store) == ["red"]
