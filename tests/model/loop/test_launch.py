"""First weights: each pipeline stage and each rank that holds experts draws its own, replicas hold the same."""

import pytest

pytestmark = pytest.mark.upstream
WORDS = "embedding.word_embeddings.weight"  # the last stage has a copy, which MTP reads


def drawn(stack, text, world, options, as_on_gpu=False):
    """{name: digest} of each rank's drawn parameters."""
    ended = [child.wait() for child in stack.ranks(world, "trained:first_weights", str(text), options, as_on_gpu)]
    assert [one.code for one in ended] == [0] * world, "\n".join(one.said for one in ended)
    return [one.value for one in ended]


@pytest.mark.parametrize("as_on_gpu", [True, False])
def test_pipeline_stages_share_no_first_weights_but_the_words(stack, text, as_on_gpu):
    first, last = drawn(stack, text, 2, {"pipeline_parallel": 2}, as_on_gpu)
    assert len(first) > 40 and len(last) > 40
    assert first.pop(WORDS) == last.pop(WORDS)
    assert set(first.values()) & set(last.values()) == set()


@pytest.mark.parametrize("as_on_gpu", [True, False])
def test_stages_of_expert_parallel_ranks_share_no_experts(stack, text, as_on_gpu):
    ranks = drawn(stack, text, 4, {"pipeline_parallel": 2, "expert_parallel": 2}, as_on_gpu)
    assert len({rank[WORDS] for rank in ranks}) == 1
    digests = [digest for rank in ranks for name, digest in rank.items() if ".local_experts." in name]
    assert len(digests) > 60
    assert len(set(digests)) == len(digests)


def test_experts_differ_by_rank_and_all_else_does_not(stack, text):
    ranks = drawn(stack, text, 2, {"expert_parallel": 2})
    experts = [{name: digest for name, digest in rank.items() if ".local_experts." in name} for rank in ranks]
    assert [len(one) for one in experts] == [40, 40]
    assert set(experts[0].values()) & set(experts[1].values()) == set()
    others = [{name: digest for name, digest in rank.items() if name not in experts[0]} for rank in ranks]
    assert others[0] == others[1]


def test_replicas_are_equal(stack, text):
    first, second = drawn(stack, text, 2, {})
    assert first == second
