"""Every index exactly once, under arbitrary duplication, order and epochs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from aegaeon_gateway.generation.assembly import Assembly
from aegaeon_proto.v1.gateway_pb2 import Token
from aegaeon_proto.v1.model_pb2 import FINISH_REASON_ERROR, FINISH_REASON_STOP


def engine(epoch: int, start: int, length: int) -> list[Token]:
    """What an engine of this epoch pushes; the values tell who spoke."""
    tokens = [Token(epoch=epoch, index=index, token=1000 * epoch + index) for index in range(start, length)]
    tokens[-1].finish = FINISH_REASON_STOP
    return tokens


@given(data=st.data(), lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_the_output_is_gapless_and_each_part_is_of_the_epoch_that_was_current(
    data: st.DataObject, lengths: list[int]
) -> None:
    assembly = Assembly(limit=20)
    spoken: list[Token] = []  # by all engines so far, the dead ones go on talking
    taken: list[Token] = []
    for number, length in enumerate(lengths):
        if assembly.finish is not None:
            break
        if number:
            assembly.next_epoch()
        spoken += engine(assembly.epoch, len(assembly.tokens), max(length, len(assembly.tokens) + 1))
        heard = data.draw(st.lists(st.sampled_from(spoken), max_size=40))
        for token in heard:
            fresh = assembly.receive(token)
            assert all(one.epoch == assembly.epoch for one in fresh)
            taken += fresh
    assert [token.index for token in taken] == list(range(len(taken)))
    assert [token.token for token in taken] == assembly.tokens
    epochs = [token.epoch for token in taken]
    assert epochs == sorted(epochs)
    assert (assembly.finish is not None) == any(token.finish for token in taken)


@given(order=st.permutations(range(10)), twice=st.lists(st.integers(0, 9)))
@settings(deadline=None)
def test_any_order_with_duplicates_gives_the_whole_output(order: list[int], twice: list[int]) -> None:
    assembly = Assembly(limit=10)
    tokens = engine(1, 0, 10)
    taken = [token for index in [*order, *twice, *order] for token in assembly.receive(tokens[index])]
    assert taken == tokens
    assert assembly.finish == FINISH_REASON_STOP


def test_indices_beyond_the_limit_are_not_kept() -> None:
    assembly = Assembly(limit=2)
    assert not assembly.receive(Token(epoch=1, index=2, token=9))
    assert len([*assembly.receive(Token(epoch=1, index=0)), *assembly.receive(Token(epoch=1, index=1))]) == 2
    assert assembly.tokens == [0, 0]


def test_an_error_ends_without_a_token() -> None:
    assembly = Assembly(limit=4)
    assembly.receive(Token(epoch=1, index=0, token=5))
    assembly.receive(Token(epoch=1, index=1, token=0, finish=FINISH_REASON_ERROR))
    assert assembly.tokens == [5]
    assert assembly.finish == FINISH_REASON_ERROR
