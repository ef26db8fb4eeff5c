"""Every index exactly once, under arbitrary duplication, order and epochs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from aegaeon_gateway.generation.choice import Choice
from aegaeon_gateway.generation.output import Output
from aegaeon_gateway.text.detokenize import Vocabulary
from aegaeon_gateway.workers.wire import Options
from aegaeon_proto.v1.gateway_pb2 import Token
from aegaeon_proto.v1.model_pb2 import FINISH_REASON_ERROR, FINISH_REASON_STOP

VOCABULARY = Vocabulary(Tokenizer(WordLevel({"a": 0}, unk_token="a")))


def choice_of(limit: int) -> Choice:
    choice = Choice(0, limit, Output(0, VOCABULARY, Options()), 0.1)
    choice.submit()
    return choice


def taken_by(choice: Choice) -> list[Token]:
    """What is in order so far."""
    return [token for token, _ in choice.fresh]


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
    choice = choice_of(limit=20)
    spoken: list[Token] = []  # by all engines so far, the dead ones go on talking
    for number, length in enumerate(lengths):
        if choice.finish is not None:
            break
        if number:
            choice.submit()
        spoken += engine(choice.epoch, len(choice.tokens), max(length, len(choice.tokens) + 1))
        heard = data.draw(st.lists(st.sampled_from(spoken), max_size=40))
        for token in heard:
            before = len(choice.fresh)
            assert choice.receive(token, 0.0) == (len(choice.fresh) > before)
            assert all(one.epoch == choice.epoch for one, _ in choice.fresh[before:])
    taken = taken_by(choice)
    assert [token.index for token in taken] == list(range(len(taken)))
    assert [token.token for token in taken] == choice.tokens
    epochs = [token.epoch for token in taken]
    assert epochs == sorted(epochs)
    assert (choice.finish is not None) == any(token.finish for token in taken)


@given(order=st.permutations(range(10)), twice=st.lists(st.integers(0, 9)))
@settings(deadline=None)
def test_any_order_with_duplicates_gives_the_whole_output(order: list[int], twice: list[int]) -> None:
    choice = choice_of(limit=10)
    tokens = engine(1, 0, 10)
    for index in (*order, *twice, *order):
        choice.receive(tokens[index], 0.0)
    assert taken_by(choice) == tokens
    assert choice.finish == FINISH_REASON_STOP


def test_indices_beyond_the_limit_are_not_kept() -> None:
    choice = choice_of(limit=2)
    assert not choice.receive(Token(epoch=1, index=2, token=9), 0.0)
    assert choice.receive(Token(epoch=1, index=0), 0.0)
    assert choice.receive(Token(epoch=1, index=1), 0.0)
    assert choice.tokens == [0, 0]


def test_an_error_ends_without_a_token() -> None:
    choice = choice_of(limit=4)
    choice.receive(Token(epoch=1, index=0, token=5), 0.0)
    choice.receive(Token(epoch=1, index=1, token=0, finish=FINISH_REASON_ERROR), 0.0)
    assert choice.tokens == [5]
    assert choice.finish == FINISH_REASON_ERROR


def test_silence_beyond_the_time_between_tokens_counts_as_stall_whatever_engines_say() -> None:
    choice = choice_of(limit=8)  # of an objective of 0.1 s between tokens
    said = {3: 0.5, 4: 0.2}
    for index, at in enumerate((1.0, 1.05, 1.1, 1.7, 1.75, 31.75)):
        choice.receive(Token(epoch=1, index=index, stall_s=said.get(index, 0.0)), at)
    assert choice.stall_s == pytest.approx(0.5 + 0.2 + 29.9)
    choice.hold(32.0)
    choice.resume(60.0)
    choice.receive(Token(epoch=1, index=6), 60.05)
    assert choice.stall_s == pytest.approx(30.6)
