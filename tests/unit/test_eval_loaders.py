"""Datasets from files: columns, references, prompts, and errors that say what to do."""

import base64
import json
import pickle
import sys
import zlib

import pytest

from benchmarks.datasets import files, gsm8k, livecodebench, longbench, maths
from benchmarks.datasets.problem import DataError
from benchmarks.datasets.registry import DATASETS


def write(path, rows):
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        lines = "\n\n".join(map(json.dumps, rows)) if path.suffix == ".jsonl" else json.dumps(rows)
        path.write_text(lines + "\n")
    return path


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.parquet"])
def test_files(tmp_path, name):
    rows = [{"question": "1 + 1?", "answer": "it is\u2028\n#### 2"}, {"question": "é", "answer": "#### 3"}]
    assert files.read_rows(write(tmp_path / name, rows)) == rows


@pytest.mark.parametrize("name, text, says", [
    ("x.csv", "", "must end in"), ("x.jsonl", "{", "x.jsonl: "), ("x.jsonl", "", "non-empty list"), ("x.json", '{"a": 1}', "non-empty list"),
    ("x.json", "[1]", "list of objects"), ("x.parquet", "no", "x.parquet: "), ("missing.json", None, "No such file"),
])
def test_bad_files_in_one_line(tmp_path, name, text, says):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=says) as error:
        files.read_rows(tmp_path / name)
    assert "\n" not in str(error.value)


def test_hub_missing_or_offline(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install -e .\[eval\], or give --data"):
        files.hub_rows("a/b", "test")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DataError, match=r"\[eval\]"):
        files.hub_file("a/b", "c")

    class Offline:
        @staticmethod
        def load_dataset(*_, **__):
            raise ConnectionError("cannot reach the hub\nlong story")

    monkeypatch.setitem(sys.modules, "datasets", Offline)
    with pytest.raises(DataError, match="ConnectionError: cannot reach the hub.*--data FILE") as error:
        files.hub_rows("a/b:main", "test")
    assert "\n" not in str(error.value)


def test_maths():
    amc, aime, math500 = maths.load([
        {"id": 4, "question": "Q", "answer": 27.0, "url": ""},
        {"id": 7, "problem": "P", "solution": r"\boxed{033}"},
        {"unique_id": "test/x.json", "problem": "R", "solution": r"long \boxed{\frac12}", "answer": r"\frac{1}{2}"},
    ])
    assert (amc.id, amc.reference, amc.messages) == ("4", "27", [{"role": "user", "content": "Q"}])
    assert (aime.reference, math500.id, math500.reference) == ("033", "test/x.json", r"\frac{1}{2}")
    with pytest.raises(DataError, match="problem, question; it has text"):
        maths.load([{"text": ""}])


def test_gsm8k():
    (p,) = gsm8k.load([{"question": "How many?", "answer": "1,000 + 234 = <<1000+234=1234>>1,234\n#### 1,234"}])
    assert (p.id, p.reference) == ("0", "1234")
    with pytest.raises(DataError, match="####"):
        gsm8k.load([{"question": "", "answer": "7"}])


def row(**more):
    public = json.dumps([{"input": "1\n", "output": "2\n", "testtype": "stdin"}])
    return dict(question_content=" Add one. ", question_id="abc", difficulty="easy", starter_code="", public_test_cases=public,
                metadata="{}") | more


def test_livecodebench():
    private = json.dumps([{"input": "5", "output": "6", "testtype": "stdin"}])
    packed = base64.b64encode(zlib.compress(pickle.dumps(private))).decode()
    for given in (packed, private):
        (p,) = livecodebench.load([row(private_test_cases=given)])
        assert [(c.given, c.expected, c.function) for c in p.reference()] == [("1\n", "2\n", None), ("5", "6", None)]
    assert (p.id, p.group) == ("abc", "easy") and "standard input" in p.messages[0]["content"]
    functional = [{"input": "1", "output": "2", "testtype": "functional"}]
    (p,) = livecodebench.load([row(starter_code="class Solution:\n    def f(self, x):", public_test_cases=functional,
                                   metadata='{"func_name": "f"}')])
    assert p.reference()[0].function == "f" and "def f(self, x):\n```" in p.messages[0]["content"]
    with pytest.raises(DataError, match="no tests"):
        livecodebench.load([row(public_test_cases="[]")])[0].reference()


def test_livecodebench_runs_no_pickle():
    class Evil:
        def __reduce__(self):
            return print, ("ran",)

    packed = base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode()
    with pytest.raises(DataError, match="builtins.print"):
        livecodebench.load([row(private_test_cases=packed)])[0].reference()


@pytest.mark.parametrize("split, names", [("v1", ["test.jsonl"]), ("v6", ["test6.jsonl"]), ("v2_v3", ["test2.jsonl", "test3.jsonl"]),
                                          ("release_v2", ["test.jsonl", "test2.jsonl"])])
def test_livecodebench_releases(monkeypatch, split, names):
    monkeypatch.setattr(livecodebench, "hub_file", lambda name, file: file)
    monkeypatch.setattr(livecodebench, "read_rows", lambda path: [{"file": path}])
    assert [r["file"] for r in livecodebench.fetch("x", split)] == names
    for bad in ("v7", "v3_v2", "test"):
        with pytest.raises(DataError, match="--split"):
            livecodebench.fetch("x", bad)


def test_longbench(tmp_path):
    rows = [dict(dataset="trec", input="Who?", context="Shots {input}", answers=["Human"], all_classes=["Human", "Date"], _id="7"),
            dict(dataset="gov_report_e", input="", context="Report", answers=["Short"], all_classes=None, _id="8")]
    trec, report = longbench.load(rows)
    assert (trec.id, trec.group, trec.reference["all_classes"]) == ("trec/7", "trec", ["Human", "Date"])
    assert "Shots {input}\n\nWho?" in trec.messages[0]["content"] and report.group == "gov_report"
    prompts = longbench.read_prompts(write(tmp_path / "p.json", {"trec": "T {context}|{input}"}))
    assert longbench.load(rows[:1], prompts)[0].messages[0]["content"] == "T Shots {input}|Who?"
    with pytest.raises(DataError, match="'gov_report' is not supported; supported: trec"):
        longbench.load(rows, prompts)
    with pytest.raises(DataError, match="must be an object"):
        longbench.read_prompts(write(tmp_path / "q.json", ["no"]))
    assert all("{context}" in text for text in longbench.PROMPTS.values()) and set(longbench.PAPER) <= set(longbench.PROMPTS)


def test_longbench_leaves_the_middle_out():
    class Letters:
        encode = staticmethod(lambda text, add_special_tokens: list(text))
        decode = staticmethod(lambda ids, skip_special_tokens: "".join(ids))

    (p,) = longbench.load([dict(dataset="lcc", input="", context="abcdefghij", answers=[""])], {"lcc": "{context}"})
    assert longbench.shorten(p, Letters, 5).messages[0]["content"] == "abhij"
    assert longbench.shorten(p, Letters, 10) is p


def test_every_dataset_is_complete():
    assert set(DATASETS) == {"amc23", "aime24", "gsm8k", "math500", "livecodebench", "longbench"}
    assert {d.max_tokens for d in DATASETS.values()} == {32768, 4096}
