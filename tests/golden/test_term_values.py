"""Terms that are zero, constant, or another one again are named."""

import numpy as np

from bipars.results.where import predictable
from bipars.terms.values import Twin, look_at, odd_terms, parts_of

RNG = np.random.default_rng(0)
A = RNG.normal(size=200)
B = RNG.normal(size=200)


def columns(*terms):
    return np.stack(np.broadcast_arrays(*terms, A)[:-1], axis=1)


def test_copies_and_opposites():
    found = look_at(columns(A, B, 1e-3 * A + 4, -7 * A, A + 0.3 * B))
    assert [values.twins for values in found] == [
        (Twin(2, False), Twin(3, True)), (), (Twin(0, False), Twin(3, True)), (Twin(0, True), Twin(2, True)), ()
    ]  # fmt: skip
    assert all(values.constant is None for values in found)


def test_zeros_and_constants_are_no_copies_of_each_other():
    found = look_at(columns(0.0, 0.0, -0.01, A))
    assert [values.constant for values in found] == [0.0, 0.0, -0.01, None]
    assert not any(values.twins for values in found)


def test_a_term_that_is_rarely_something_else_is_no_constant():
    assert look_at(columns(1.0 * (np.arange(200) == 150)))[0].constant is None


def test_nothing_is_said_of_a_few_transitions():
    assert odd_terms(columns(A, A, 0.0)[:30], ["a", "b", "c"], B[:30]) == []
    assert look_at(np.zeros((0, 2)))[1].constant is None


def test_every_odd_term_has_its_sentence():
    lines = odd_terms(columns(A, 2 * A, 0.0, 3.5, B, -B), ["a", "copy", "zero", "living", "b", "against"], A * B)
    assert lines == [
        "term 'copy' is the same as term 'a', up to its scale: keep one of them",
        "term 'zero' is 0 in all 200 steps looked at: it changes nothing. Is it computed from what the environment "
        "gives?",
        "term 'living' is 3.5 in all 200 steps looked at: a constant only rewards longer or shorter episodes",
        "term 'against' is the opposite of term 'b', up to its scale: keep one of them",
    ]


def test_without_terms_there_is_nothing_odd():
    assert odd_terms(np.zeros((256, 8, 0)), [], np.ones((256, 8))) == []


def test_terms_that_the_reward_contains():
    assert parts_of(3 + 2 * A, columns(B, A)) == [1]
    assert parts_of(A + 0.5 * B, columns(A * B, A, 0.0, B)) == [1, 3]
    (line,) = odd_terms(columns(A, B, A * B), ["a", "b", "other"], A + B)
    assert line.startswith("the true reward is the sum of terms 'a' and 'b', up to scale, in all 200 steps looked at: ")


def test_terms_that_go_with_the_reward_are_not_in_it():
    noise = RNG.normal(size=200)
    assert parts_of(A + 0.1 * noise, columns(A, B)) == []  # nearly, but with something of its own
    assert parts_of(-A, columns(A, B)) == parts_of(A - B, columns(A, B)) == []  # against it
    assert parts_of(np.ones(200), columns(A, 1.0)) == []  # a constant is made of nothing
    rare = 1.0 * (np.arange(200) % 50 == 0)
    assert parts_of(rare, columns(2 * rare, A)) == []  # so few may agree by chance


def test_noise_may_hide_what_a_term_rewards():
    noise, falls = RNG.normal(size=(2, 1000))
    terms = np.stack([noise, -1.0 * (falls > 2) + 0.01 * noise, 0.001 * noise - 0.1, np.zeros(1000)], axis=1)
    assert [values.hidden for values in look_at(terms)] == [False, True, True, True]
    assert look_at(terms[:30])[0].hidden  # too little was seen


def test_noise_is_what_no_input_predicts():
    x = np.random.default_rng(1).normal(size=(2000, 3))
    assert predictable(x, x[:, 1] + RNG.normal(size=2000))
    assert predictable(x, 1e-6 * x[:, 0] * x[:, 2])
    assert predictable(x, np.sign(x[:, 2]))
    noise = np.random.default_rng(2).normal(size=(2000, 20))
    assert not any(predictable(x, column) for column in noise.T)
