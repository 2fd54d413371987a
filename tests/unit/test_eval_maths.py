"""Answers taken out of replies, and compared: known-right and known-wrong ones."""

import pytest

from benchmarks.checkers import extract, maths
from benchmarks.datasets import problem

pytest.importorskip("math_verify")


@pytest.mark.parametrize("text, answer", [
    (r"so \boxed{42}.", "42"),
    (r"\boxed{1} no, \boxed{2}", "2"),
    (r"<think>\boxed{1}</think> It is \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"<think>\boxed{1}</think> I cannot say.", None),
    (r"<think>we get \boxed{1} but", "1"),  # cut off: what it last boxed
    (r"\boxed{\{1, 2\}} and then \boxed{3", r"\{1, 2\}"),  # the last one is not complete
    (r"\boxed {x_{1}}", "x_{1}"),
    (r"\boxed{}", None),
    ("17 + 1 = 18\n#### 18\n", "18"),
    ("#### 5\n#### 1,234 apples", "1,234 apples"),
    ("The final answer is: **7**.", "7"),
    ("the answer is $\\frac12$ and that is it", "$\\frac12$"),
    ("I had 3 apples, then 4", None),  # a number is not an answer
    ("", None),
])
def test_final_answer(text, answer):
    assert extract.final_answer(text) == answer


RIGHT = [
    (r"\frac{1}{2}", "0.5"), (r"\frac{1}{2}", r"\dfrac12"), (r"\frac12", "1/2"), ("1234", "1,234"), ("1,234", "1234"),
    ("18", r"\$18.00"), ("18", r"18\text{ dollars}"), ("18", "18 apples"), (r"90^\circ", "90"), ("33", "033"), ("27", "27.0"),
    (r"5.4 \text{ cents}", "5.4"), (r"3\sqrt{13}", r"\sqrt{117}"), ("6 - 5i", "-5i+6"), (r"\{1,2,3\}", r"\{3,1,2\}"),
    (r"\{1,2,3\}", "3, 1, 2"), (r"\left(3, \frac{\pi}{2}\right)", r"(3,\pi/2)"), (r"\text{Evelyn}", "Evelyn"),
    (r"\text{Evelyn}", r"\text{evelyn}"), (r"\text{(C)}", "C"), ("x=5", "5"), ("10", r"10\%"), (r"(-\infty, 3]", r"\left(-\infty,3\right]"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"), ("p - q", "-q + p"), ("x^2+2x+1", "(x+1)^2"),
    ("2k+2", "2(k+1)"), ("-3", "-3.0"), ("10000000", "10^7"),
    ("Tuesday, Wednesday", r"\text{Tuesday, Wednesday}"), (r"4\,210\,000", "4210000"), (r"\$32,\!348", "32348"),
]
WRONG = [
    (r"\frac{1}{2}", r"\frac{2}{1}"), (r"\frac{1}{2}", "0.51"), ("1234", "1,235"), ("18", "1.8"), ("18", "-18"), ("33", "330"),
    (r"\frac13", "0.33"), (r"\{1,2,3\}", r"\{1,2\}"), (r"\{1,2\}", r"\{1,2,3\}"), ("(1,2)", "(2,1)"), (r"\text{Evelyn}", "Angela"),
    (r"\text{(C)}", "B"), ("even", "odd"), (r"(-\infty, 3]", r"(-\infty, 3)"), (r"3\sqrt{13}", r"\sqrt{118}"), ("6-5i", "6+5i"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}"), ("5", "6, 5"), ("5", r"\text{none}"),
    ("x^2", "x^3"), ("5", ""),
]


@pytest.mark.parametrize("reference, answer", RIGHT)
def test_equal(reference, answer):
    assert maths.equal(reference, answer)


@pytest.mark.parametrize("reference, answer", WRONG)
def test_not_equal(reference, answer):
    assert not maths.equal(reference, answer)


@pytest.mark.parametrize("text, score, note", [
    (r"<think>\boxed{3}</think>\boxed{4}", 1.0, ""),
    (r"<think>\boxed{4}</think>\boxed{3}", 0.0, ""),
    (r"\boxed{3} or \boxed{4}", 1.0, ""),  # never the two of them as a set
    ("4 4 4 4 4", 0.0, "no answer"),
])
def test_check(text, score, note):
    verdict = maths.check(problem.Problem("0", [], "4"), text)
    assert (verdict.score, verdict.note) == (score, note)


def test_code_blocks():
    assert extract.last_code("<think>```python\nno\n```</think>\n```python\na = 1\n```\nor\n```py\nb = 2\n```\n") == "b = 2\n"
    assert extract.last_code("```\nx\n```") == "x\n"
    assert extract.last_code("```cpp\nint x;\n```") is None
    assert extract.last_code("```python\nhalf") is None
    assert extract.last_code("print(1)") is None
