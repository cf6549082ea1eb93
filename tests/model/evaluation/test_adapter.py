"""lm-evaluation-harness on a checkpoint of nam56r_tiny: by-hand likelihoods, a task of local files, refusals."""

import json
import math
import shutil
from types import SimpleNamespace

import pytest
import torch
from train_kit import copy, good, train

from patchlane.base.errors import PatchlaneError

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install -e .[evaluate]")
pytestmark = pytest.mark.upstream
SEQUENCE = 64
QUESTIONS = [("x = ", ["1", "y"], 0), ("def f(", ["x)", "::"], 0), ("if x: return ", ["foo_bar", "##"], 1)]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: {kind}
{body}
"""
CHOICE = """
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list: [{metric: acc}]
"""
ROLLING = """
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: byte_perplexity}]
"""
GENERATE = 'doc_to_text: "{{question}}"\ndoc_to_target: "{{question}}"'


@pytest.fixture(scope="module")
def run(stack, text, tmp_path_factory):
    """Twelve steps, so that it has preferences."""
    out = tmp_path_factory.mktemp("evaluated") / "run"
    common = {"steps": 12, "evaluate_every": 100, "save_every": 12, "learning_rate": 3e-3, "fp32": True}
    good(train(stack, out, text, micro_batch=2, **common))
    return out


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A folder of three tasks and their data."""
    folder = tmp_path_factory.mktemp("tasks")
    asked = [{"question": q, "choices": c, "answer": a, "text": (q + c[a]) * 9} for q, c, a in QUESTIONS]
    (folder / "data.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    kinds = {
        "choose": ("multiple_choice", CHOICE),
        "roll": ("loglikelihood_rolling", ROLLING),
        "write": ("generate_until", GENERATE),
    }
    for name, (kind, body) in kinds.items():
        made = TASK.format(name=name, data=folder / "data.jsonl", kind=kind, body=body)
        (folder / f"{name}.yaml").write_text(made)
    return folder


@pytest.fixture
def evaluate(stack, tmp_path):
    """The verb in a process of its own, without a network."""
    offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}

    def called(*arguments):
        return stack.start("trained:evaluate", [*map(str, arguments)], environment=offline).wait()

    return called


CASES = [("def f(x):", " return x"), ("", "x = 1\ny = foo_bar"), ("if x: ", "é"), ("y" * 20, "y"), ("  ", "x")]


def test_likelihoods_are_those_of_the_training_forward_by_hand(stack, run):
    ended = stack.run("trained:likelihoods", str(run), CASES)
    assert ended.code == 0, ended.said
    for found in ended.value:
        assert found["asked"] == pytest.approx(found["by_hand"], rel=1e-6)
        assert found["rolling"] == pytest.approx(found["after_eod"], rel=1e-6)
        assert found["greedy"] == found["likeliest"] and found["asked"] < 0
    assert len({round(found["asked"], 3) for found in ended.value}) == len(CASES)


def test_tasks_of_local_files_give_the_results_that_their_likelihoods_say(stack, run, tasks, evaluate, tmp_path):
    held = copy(run, tmp_path / "run")
    ended = evaluate(held, "--tasks", tasks / "choose.yaml", "--tasks", "roll", "--include-path", tasks)
    assert ended.code == 0, ended.said
    kept = json.loads((held / "evaluation" / "step_0000012.json").read_text())
    assert (kept["checkpoint"], kept["step"], kept["size"], kept["sequence"]) == (
        "step_0000012",
        12,
        "nam56r_tiny",
        SEQUENCE,
    )
    pairs = [(question, choice) for question, choices, _ in QUESTIONS for choice in choices]
    by_hand = [found["by_hand"] for found in stack.run("trained:likelihoods", str(run), pairs).value]
    right = [(by_hand[2 * at] > by_hand[2 * at + 1]) == (answer == 0) for at, (*_, answer) in enumerate(QUESTIONS)]
    choose = kept["tasks"]["choose"]
    assert choose["metrics"]["acc,none"] == pytest.approx(sum(right) / 3) and choose["samples"] == 3
    assert 1 < kept["tasks"]["roll"]["metrics"]["byte_perplexity,none"] < 320
    assert "choose" in ended.said and "byte_perplexity" in ended.said


@pytest.mark.parametrize("name", ["write", "no_such_task", "broken", "elsewhere", "wrong"])
def test_tasks_that_cannot_be_run_are_refused_in_a_line(run, tasks, evaluate, tmp_path, name):
    folder = tmp_path / "tasks"
    shutil.copytree(tasks, folder)
    (folder / "broken.yaml").write_text("task: broken\noutput_type: [")
    lines = (folder / "data.jsonl").read_text()  # the harness tries a task's first question as it loads it
    (folder / "worse.jsonl").write_text(lines + json.dumps({"question": "", "choices": [], "answer": 5}) + "\n")
    wrong = (folder / "choose.yaml").read_text().replace("task: choose", "task: wrong")
    (folder / "wrong.yaml").write_text(wrong.replace(f"{tasks}/data.jsonl", f"{folder}/worse.jsonl"))
    away = (
        (folder / "roll.yaml").read_text().replace("data.jsonl", "gone.jsonl").replace("task: roll", "task: elsewhere")
    )
    (folder / "elsewhere.yaml").write_text(away)
    given = folder / "broken.yaml" if name == "broken" else name
    ended = evaluate(run, "--tasks", given, "--include-path", folder)
    assert ended.code == 2 and "error: " in ended.said and "fix: " in ended.said, ended.said
    assert "Traceback" not in ended.said and not (run / "evaluation").exists()


@pytest.fixture
def merged(tmp_path):
    """The adapter over a BPE with tokens "sent" and "import x", and a network that finds all tokens alike."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install -e .[data]")
    from model.data.source.tokenizers import load
    from model.evaluation.adapter import Checkpoint

    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<eod>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["sent", "import x"] * 9, trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load(f"hf:{tmp_path / 'tokenizer.json'}", "<eod>")
    vocab = tokenizer.description.vocab_size
    return Checkpoint(
        SimpleNamespace(
            tokenizer=tokenizer,
            encoding=SimpleNamespace(language="text", fields=()),
            sequence=16,
            size=SimpleNamespace(structure=SimpleNamespace(fields={})),
            logits=lambda tokens, *_: torch.zeros(len(tokens), vocab),
        )
    )


def requests(*pairs):
    from lm_eval.api.instance import Instance

    return [
        Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=0, metadata=("task", at, 1))
        for at, pair in enumerate(pairs)
    ]


def test_an_answer_that_shares_its_token_with_the_context_is_scored_alone(merged):
    """Encoded with the context it has no token; a sum over none is 0, more likely than all others."""
    pairs = [("s", "ent"), ("s", "x"), ("import ", "x"), ("sen", "t")]
    assert [merged._encode_pair(*pair)[1] for pair in (pairs[0], pairs[2])] == [[], []]
    each = merged.loglikelihood(requests(*pairs), disable_tqdm=True)
    alone = [len(merged.tok_encode(text)) for text in ("ent", "x", " x", "t")]
    vocab = merged._tokenizer.description.vocab_size
    assert [score for score, _ in each] == pytest.approx([-count * math.log(vocab) for count in alone])
    assert not any(greedy for _, greedy in each)


@pytest.mark.parametrize("way", ["loglikelihood", "loglikelihood_rolling"])
def test_a_text_without_tokens_is_refused_by_its_document(way, merged):
    pairs = [("s", "x"), ("s", "")] if way == "loglikelihood" else [("text",), ("",)]
    with pytest.raises(PatchlaneError) as refused:
        getattr(merged, way)(requests(*pairs), disable_tqdm=True)
    assert "task, document 1" in refused.value.what and refused.value.remedy
