"""Sampling: distributions, penalties as transformers has them, and draws that depend on nothing but their key."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_proto.engine.sampling import ReasoningBudget, SamplingParams, TokenRun
from aegaeon_sidecar.backends.choose import choose
from aegaeon_sidecar.backends.draws import NO_TOKEN, numbers, pick
from aegaeon_sidecar.backends.logprobs import score
from aegaeon_sidecar.sampling import NotFinite, Sampled, SamplerState
from aegaeon_sidecar.sampling.state import uniform

VOCAB = 50
PINNED = [0.69577956738585, 0.3752453576893009]


def sampler_of(*, choice=0, prompt=(), output=(), **params):
    return SamplerState(SamplingParams(**params), choice=choice, prompt=prompt, output=output)


def random_logits(rows=1, vocab=VOCAB, seed=0, scale=2.0):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, scale, (rows, vocab)).astype(np.float32))


def tokens_of(logits, samplers):
    return [sampled.token for sampled in choose(logits, samplers)]


def frequencies(logits, draws=20_000, **parameters):
    """How often each token comes, one draw per output index."""
    counts = np.zeros(logits.shape[-1])
    rows = logits.expand(draws, -1)
    samplers = []
    for index in range(draws):
        samplers.append(sampler_of(seed=1, **parameters))
        samplers[-1].generated = index
    for token in tokens_of(rows, samplers):
        counts[token] += 1
    return counts


def warped(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """The distribution that transformers samples from."""
    from transformers.generation import logits_process as hf

    scores = hf.TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        scores = hf.TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1.0:
        scores = hf.TopPLogitsWarper(top_p)(None, scores)
    if min_p:
        scores = hf.MinPLogitsWarper(min_p)(None, scores)
    return scores.softmax(-1)[0].numpy().astype(float)


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 1.0},
        {"temperature": 0.6},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.7},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=str,
)
def test_tokens_come_as_often_as_transformers_would_draw_them(parameters):
    logits = random_logits()
    expected, counts = warped(logits, **parameters), frequencies(logits, **parameters)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    mean = expected[possible] * counts.sum()
    chi_square = ((counts[possible] - mean) ** 2 / mean).sum()
    freedom = possible.sum() - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)


def test_a_chi_square_of_a_wrong_distribution_would_be_noticed():
    logits = random_logits()
    mean = warped(logits, temperature=1.1) * 20_000
    counts = frequencies(logits, temperature=1.0)
    assert ((counts - mean) ** 2 / mean).sum() > 49 + 5 * math.sqrt(2 * 49)


def test_temperature_zero_takes_the_likeliest_and_draws_nothing():
    logits = random_logits(rows=4)
    samplers = [SamplerState(SamplingParams(seed=i, top_p=0.1, min_p=0.9)) for i in range(4)]
    assert tokens_of(logits, samplers) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("parameters", [{"top_k": 1}, {"top_p": 0.0}, {"top_p": 1e-9}, {"min_p": 1.0}])
def test_a_filter_that_leaves_one_token_takes_it(parameters):
    logits = random_logits(rows=8)
    samplers = [sampler_of(temperature=1.0, seed=i, **parameters) for i in range(8)]
    assert tokens_of(logits, samplers) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [1e-6, 1e-30])
def test_a_tiny_temperature_is_greedy_and_finite(temperature):
    logits = random_logits(rows=8, scale=50.0)
    samplers = [SamplerState(SamplingParams(temperature=temperature, seed=i)) for i in range(8)]
    assert tokens_of(logits, samplers) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("vocab", [50, 1031, 5003])
def test_a_row_is_chosen_as_if_it_were_alone(vocab):
    logits = random_logits(rows=9, vocab=vocab)
    options = [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.5, "top_k": 40, "repetition_penalty": 1.2, "prompt": range(30)},
    ]
    samplers = [sampler_of(seed=i, logprobs=2, **options[i % 3]) for i in range(9)]
    alone = [choose(logits[i : i + 1], [samplers[i]])[0] for i in range(9)]
    assert choose(logits, samplers) == alone
    assert choose(logits.flip(0), samplers[::-1]) == alone[::-1]


def test_two_tokens_of_equal_logit_at_the_edge_of_top_k_may_both_come():
    logits = torch.tensor([[3.0, 1.0, 1.0, 0.0]])
    counts = frequencies(logits, draws=500, temperature=1.0, top_k=2)
    assert (counts[:3] > 0).all()
    assert counts[3] == 0


def test_repetition_penalty_is_that_of_transformers():
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    logits, prompt, output = random_logits(scale=5.0), [3, 4, 4, 9], [int(random_logits(scale=5.0).argmax()), 7]
    for penalty in (1.0, 1.3, 30.0, 0.7):
        expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), logits.clone())
        sampler = SamplerState(SamplingParams(repetition_penalty=penalty), prompt=prompt, output=output)
        assert tokens_of(logits, [sampler]) == expected.argmax(-1).tolist()


def test_frequency_grows_with_each_output_and_presence_does_not():
    logits = torch.zeros(1, 5)
    logits[0, 2] = 1.0
    once, thrice = [2], [2, 2, 2]
    assert tokens_of(logits, [SamplerState(SamplingParams(frequency_penalty=0.4), output=once)]) == [2]
    assert tokens_of(logits, [SamplerState(SamplingParams(frequency_penalty=0.4), output=thrice)]) != [2]
    assert tokens_of(logits, [SamplerState(SamplingParams(presence_penalty=0.9), output=thrice)]) == [2]
    assert tokens_of(logits, [SamplerState(SamplingParams(presence_penalty=1.1), output=once)]) != [2]
    assert tokens_of(
        logits, [SamplerState(SamplingParams(presence_penalty=1.1, frequency_penalty=1.1), prompt=thrice)]
    ) == [2]


@given(
    output=st.lists(st.integers(0, VOCAB - 1), max_size=150),
    prompt=st.lists(st.integers(0, VOCAB - 1), max_size=20),
    repetition=st.sampled_from([1.0, 1.2]),
)
def test_incremental_penalties_equal_rebuilt_ones(output, prompt, repetition):
    parameters = {
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "repetition_penalty": repetition,
        "prompt": prompt,
    }
    grown = sampler_of(**parameters)
    for token in output:
        grown.accept(token)
    rebuilt = sampler_of(**parameters, output=output)
    ids, counts = grown.seen()
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {
        token: float(output.count(token)) for token in {*output, *(prompt if repetition != 1.0 else [])}
    }
    assert all(np.array_equal(a, b) for a, b in zip(grown.seen(), rebuilt.seen(), strict=True))
    assert grown.draw() == rebuilt.draw()


def test_penalties_count_any_number_of_distinct_tokens():
    grown = SamplerState(SamplingParams(frequency_penalty=0.5))
    for token in [*range(1000), *range(500)]:
        grown.accept(token)
    ids, counts = grown.seen()
    assert ids.tolist() == list(range(1000))
    assert counts.tolist() == [2.0] * 500 + [1.0] * 500


def test_a_bias_moves_the_choice_and_ids_outside_the_vocabulary_do_nothing():
    logits = random_logits()
    assert tokens_of(logits, [SamplerState(SamplingParams(logit_bias={7: 100.0, VOCAB: 100.0}))]) == [7]
    best = int(logits.argmax())
    assert tokens_of(logits, [SamplerState(SamplingParams(logit_bias={best: -100.0}))]) != [best]


def test_stop_ids_cannot_come_before_the_minimum():
    logits = random_logits()
    stop = int(logits.argmax())
    sampler = SamplerState(SamplingParams(min_tokens=2, stop_ids=(stop, VOCAB + 3)))
    for _ in range(2):
        (token,) = tokens_of(logits, [sampler])
        assert token != stop
        sampler.accept(token)
    assert tokens_of(logits, [sampler]) == [stop]


def test_logprobs_are_of_the_raw_distribution_whatever_is_changed():
    logits = random_logits()
    expected = logits.double().log_softmax(-1)[0]
    sampler = SamplerState(
        SamplingParams(temperature=0.3, seed=5, logprobs=3, logit_bias={7: 100.0}, repetition_penalty=2.0),
        prompt=[1, 2],
    )
    (sampled,) = choose(logits, [sampler])
    assert sampled.token == 7
    assert sampled.logprob == pytest.approx(float(expected[7]), abs=1e-5)
    best = expected.topk(3)
    assert [token for token, _ in sampled.top] == best.indices.tolist()
    assert [value for _, value in sampled.top] == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize("wanted", [0, 20, 1000])
def test_as_many_logprobs_come_as_asked_for_and_exist(wanted):
    (sampled,) = choose(random_logits(), [SamplerState(SamplingParams(logprobs=wanted))])
    assert len(sampled.top) == min(wanted, VOCAB)
    assert sampled.logprob is not None


def test_sampled_logits_are_not_changed_in_place():
    logits = random_logits(rows=2)
    before = logits.clone()
    samplers = [
        SamplerState(SamplingParams(temperature=1.0, top_p=0.5, logit_bias={1: 3.0}, presence_penalty=1.0), output=[4])
    ] * 2
    choose(logits, samplers)
    assert torch.equal(logits, before)


def test_draws_are_uniform_and_differ_in_every_part_of_their_key():
    draws = np.array([uniform(*key) for key in product(range(10), range(10), range(100))])
    assert len(set(draws.tolist())) == len(draws)
    assert (draws >= 0).all()
    assert (draws < 1).all()
    counts, _ = np.histogram(draws, bins=20, range=(0, 1))
    assert ((counts - 500) ** 2 / 500).sum() < 19 + 5 * math.sqrt(2 * 19)


def test_draws_are_the_same_on_every_machine():
    assert [uniform(0, 0, 0), uniform(2**64 - 1, 3, 5)] == PINNED


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1},
        {"logprobs": 2},
        {"presence_penalty": 1.0, "output": [3]},
    ],
)
def test_a_row_that_is_not_finite_is_refused_and_changes_no_other(bad, asked):
    logits = random_logits(5)
    samplers = [sampler_of(seed=7, **asked, choice=row) for row in range(5)]
    whole = choose(logits, samplers)
    for rows in ([0], [2, 3], range(5)):
        poisoned = logits.clone()
        for row in rows:
            poisoned[row, 11] = bad
        got = choose(poisoned, samplers)
        assert got == [NotFinite() if row in rows else whole[row] for row in range(5)]
        if set(asked) <= {"temperature", "top_k", "top_p", "min_p"}:
            picked = pick(poisoned, torch.from_numpy(numbers(samplers, [0] * 5))).tolist()
            assert picked == [NO_TOKEN if row in rows else whole[row].token for row in range(5)]


def test_rows_of_nothing_but_minus_infinity_are_refused_too():
    assert choose(torch.full((1, VOCAB), -math.inf), [SamplerState(SamplingParams(temperature=1.0))]) == [NotFinite()]


@pytest.mark.parametrize(
    "asked",
    [
        {"repetition_penalty": 1e-40, "prompt": range(VOCAB)},
        {"repetition_penalty": 1e-40, "prompt": range(VOCAB), "temperature": 1.0},
        {"frequency_penalty": math.nan, "output": [3]},
        {"logit_bias": {4: math.inf}},
        {"min_tokens": 3, "stop_ids": range(VOCAB)},
    ],
)
def test_rows_made_infinite_by_parameters_are_distinguished_from_those_of_the_model(asked):
    logits, plain = random_logits(2), SamplerState()
    spoiled, other = choose(logits, [sampler_of(**asked), plain])
    assert (spoiled, other) == (NotFinite(by_request=True), choose(logits[1:], [plain])[0])
    logits[0] = math.nan
    assert choose(logits, [sampler_of(**asked), plain]) == [NotFinite(by_request=False), other]


def test_masked_tokens_have_no_logprobs():
    logits = random_logits()
    logits[0, 9] = math.nan
    masked = SamplerState(SamplingParams(min_tokens=2, stop_ids=(9,)))
    assert isinstance(choose(logits, [masked])[0], Sampled)
    assert choose(logits, [SamplerState(SamplingParams(min_tokens=2, stop_ids=(9,), logprobs=1))]) == [NotFinite()]


def test_only_allowed_tokens_are_chosen():
    logits, allowed = random_logits(rows=1), (3, 7, 30, VOCAB + 5)
    greedy = tokens_of(logits, [sampler_of(allowed_ids=allowed)])
    assert greedy == [max((3, 7, 30), key=lambda token: float(logits[0, token]))]
    counts = frequencies(logits, draws=2000, temperature=1.0, allowed_ids=allowed)
    assert {int(token) for token in np.flatnonzero(counts)} == {3, 7, 30}


def test_bad_words_are_those_of_transformers():
    from transformers.generation.logits_process import NoBadWordsLogitsProcessor

    words = [[5], [8, 9], [1, 2, 3], [8, 8, 4]]
    runs = tuple(TokenRun(tuple(word)) for word in words)
    for output in ([], [8], [1, 2], [2, 1, 2], [8, 8], [9, 8, 8], [1, 2, 3]):
        sampler = sampler_of(output=output, bad_words=runs)
        scores = NoBadWordsLogitsProcessor(words)(torch.tensor([[49, *output]]), random_logits())
        assert sampler.completes_bad_word().tolist() == torch.isinf(scores[0]).nonzero()[:, 0].tolist(), output


def test_a_bad_word_is_never_output_and_its_beginning_may_be():
    logits = torch.full((1, VOCAB), -5.0)
    logits[0, [8, 9]] = torch.tensor([2.0, 1.0])
    sampler, output = sampler_of(bad_words=(TokenRun((8, 8)),)), []
    for _ in range(4):
        [token] = tokens_of(logits, [sampler])
        sampler.accept(token)
        output.append(token)
    assert output == [8, 9, 8, 9]


def test_a_row_without_any_allowed_token_is_not_finite():
    sampler = sampler_of(allowed_ids=(4,), bad_words=(TokenRun((4,)),))
    assert choose(random_logits(), [sampler]) == [NotFinite(by_request=True)]


def test_tokens_are_scored_by_the_distribution_before_them():
    logits = random_logits(rows=3)
    expected = logits.log_softmax(-1)
    for row, said in enumerate(score(logits, [4, 9, 12], 2)):
        order = expected[row].argsort(descending=True).tolist()
        assert said.token == [4, 9, 12][row]
        assert said.logprob == pytest.approx(float(expected[row, said.token]))
        assert order[said.rank - 1] == said.token
        assert [token for token, _ in said.top] == order[:2]
    assert score(logits[:0], [], 2) == ()


def budgeted(tokens, *, inside=False, closing=(7, 8)):
    return ReasoningBudget(tokens, TokenRun((5, 6)), TokenRun(closing), inside)


def said(budget, count, logits):
    """The first tokens of an output under a budget."""
    sampler, output = sampler_of(reasoning=budget), []
    for _ in range(count):
        [token] = tokens_of(logits, [sampler])
        sampler.accept(token)
        output.append(token)
        assert sampler_of(reasoning=budget, output=output).forced == sampler.forced, "it is a function of the output"
    return output


def test_reasoning_ends_where_its_budget_is_used_up():
    logits = torch.zeros(1, VOCAB)
    logits[0, 30] = 9.0
    assert said(budgeted(3, inside=True), 7, logits) == [30, 30, 30, 7, 8, 30, 30]
    assert said(budgeted(0, inside=True), 3, logits) == [7, 8, 30]
    assert said(budgeted(2), 4, logits) == [30] * 4, "outside of reasoning nothing is limited"


def test_an_end_that_has_begun_by_itself_is_completed_and_not_begun_again():
    sampler = sampler_of(reasoning=budgeted(3, inside=True), output=[30, 30, 7])
    assert sampler.forced == 8
    assert sampler_of(reasoning=budgeted(3, inside=True), output=[30, 7, 8, 30, 30]).forced is None
    opened = sampler_of(reasoning=budgeted(1), output=[9, 5, 6, 30])
    assert opened.forced == 7
