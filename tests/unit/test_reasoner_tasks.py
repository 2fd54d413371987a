"""The problems and their checker: a checker that says yes too often would make every accuracy figure a lie."""

import pytest

from benchmarks.reasoner import MODEL_PATH, tasks
from benchmarks.reasoner.knobs import make_problems, short_knobs


@pytest.mark.parametrize("family", tasks.FAMILIES)
@pytest.mark.parametrize("regime", ["default", "short"])
def test_gold_text_is_right_and_every_other_number_is_wrong(family, regime):
    for problem in make_problems(family, 300, 4, regime):
        assert problem.check(problem.cot)
        gold = f"answer {problem.answer}"
        assert gold in problem.cot
        for number in tasks.NUM:
            assert problem.check(problem.cot.replace(gold, f"answer {number}")) == (number == problem.answer)


@pytest.mark.parametrize("text, right", [
    ("</think> answer 42 <|eos|>", True),
    ("</think> answer 42", True),  # the end token is not part of the text that an API returns
    ("answer 41 answer 42", True),  # the last one counts
    ("answer 42 answer 41", False),
    ("answer 4", False),
    ("answer 423", False),
    ("42", False),
    ("<think> 42 ;", False),  # cut off before the answer
    ("", False),
])
def test_check(text, right):
    assert tasks.check(text, "42") == right


@pytest.mark.parametrize("family", tasks.FAMILIES)
def test_same_seed_same_problem_and_levels_are_lengths(family):
    first, again = (tasks.gen(family, "test-3", 1000) for _ in range(2))
    assert (first.text, first.cot) == (again.text, again.cot)
    assert first.text != tasks.gen(family, "test-4", 1000).text
    for regime in ("default", "short"):
        lengths = [len(p.cot_toks) for p in make_problems(family, 1000, 8, regime)]
        assert all(850 < n < 1150 for n in lengths), lengths


def test_an_answer_follows_from_the_prompt_alone():
    """An independent solver of `chain` problems, which reads nothing but the prompt."""
    for problem in make_problems("chain", 600, 8):
        words = problem.prompt.split()
        base, facts = words.index("base") + 2, words.index("facts")
        values = {words[i]: int(words[i + 1]) for i in range(base, facts, 3)}
        for i in range(facts + 2, words.index("ask"), 7):
            name, a, op, b = words[i + 1], words[i + 3], words[i + 4], words[i + 5]
            values[name] = (values[a] + (values[b] if op == "+" else -values[b])) % 100
        assert int(problem.answer) == values[words[words.index("ask") + 1]]


def test_knobs_refuse_what_they_do_not_know():
    with pytest.raises(ValueError, match="unknown family"):
        short_knobs("poem", 300)
    with pytest.raises(ValueError, match="unknown knobs"):
        make_problems("loop", 300, 1, "long")


def test_tokenizer_and_chat_template_give_the_ids_the_model_was_trained_on():
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL_PATH)
    for family in tasks.FAMILIES:
        problem = tasks.gen(family, "test-0", 300)
        prompt, cot = problem.ids()
        assert tokenizer(problem.text, add_special_tokens=False)["input_ids"] == prompt
        chat = tokenizer.apply_chat_template([{"role": "user", "content": problem.prompt}], add_generation_prompt=True)
        assert (chat if isinstance(chat, list) else chat["input_ids"]) == prompt
        assert problem.check(tokenizer.decode(cot, skip_special_tokens=True))
