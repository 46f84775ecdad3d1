r"""What a model might put into a box to hang who compares it, to fill its memory, or to have
something run.
"""

import random

HUNG = [  # that take longer than anybody waits, or more memory than there is
  "9^{9^{9}}",
  "9^{9^{9^{9}}}",
  "9**9**9",
  "10^{10^{10}}",
  "(10^{10^{9}})!",
  "100000000!",
  "(10^7)!!",
  "((((9!)!)!)!)!",
  "\\binom{10^9}{5\\cdot 10^8}",
  "\\binom{100000000}{50000000}",
  "\\sum_{n=1}^{10^{12}} \\frac{1}{n^n}",
  "\\prod_{n=1}^{10^9} n",
  "\\int_0^1 x^{x^{x^{x^x}}} dx",
  "\\int \\frac{\\sin(x^2)\\cos(x^3)}{\\ln(x)\\sqrt{x+1}} dx",
  "\\lim_{x\\to\\infty} x^{x^{x}}",
  "(x+y+z+1)^{1000}",
  "(a+b+c+d)^{10^5}",
  "(x+1)^{10^9}",
  "\\sqrt{" * 25 + "2" + "}" * 25,
  "2^{" * 40 + "2" + "}" * 40,
  "\\frac{1}{1+" * 20 + "x" + "}" * 20,
  "\\sin(" * 40 + "x" + ")" * 40,
  "\\log(" * 40 + "x" + ")" * 40,
  "|" * 100 + "x" + "|" * 100,
  "(" * 140 + "1" + ")" * 140,
  "-" * 250 + "x",
  "1+" * 140 + "x",
  "x!" + "!" * 200,
  "2^{10^{8}}",
  "3^{10^{9}} \\mod 7",
  "\\begin{pmatrix}" + "\\\\".join("&".join("x" * 9) for _ in range(9)) + "\\end{pmatrix}",
  "x^{1000000007} + x^{998244353}",
  "\\sqrt[10^9]{10^{10^9}}",
  "\\sqrt{x^{100}+x^{99}+x^{98}+1}^{77}",
  "(\\sqrt{2}+\\sqrt{3}+\\sqrt{5}+\\sqrt{7})^{200}",
  "\\sin(10^{10^{10}})",
  "e^{e^{e^{e^{e}}}}",
  "\\frac{10^{10^8}}{3^{10^8}}",
]
CODE = [  # that a careless comparison would run
  "__import__('os').system('touch {mark}')",
  '__import__("os").system("touch {mark}")',
  "\\text{{__import__('os').system('touch {mark}')}}",
  "().__class__.__base__.__subclasses__()",
  "open('{mark}','w')",
  "eval(\"open('{mark}','w')\")",
  "exec(\"import os; os.mkdir('{mark}')\")",
  "lambda: open('{mark}','w')",
  "\\input{{/etc/passwd}}",
  "\\write18{{touch {mark}}}",
]
LONG = [  # that are long: outside any box, too
  "{" * 100_000,
  "}" * 100_000,
  "\\boxed{" * 50_000,
  "\\boxed{" * 20_000 + "}" * 20_000,
  "\\boxed{" + "9" * 1_000_000 + "}",
  "\\boxed{" + "\\frac{" * 100_000 + "}",
  "\\boxed{" + "(" * 100_000 + ")" * 100_000 + "}",
  "\\" * 1_000_001,
  "\\boxed" * 150_000,
  " " * 1_000_000 + "\\boxed{ " + " " * 1_000_000 + "}",
  "\\boxed{1}" * 100_000,
  "$" * 500_000,
]


def texts(mark: str) -> list[str]:
  """Returns completions with hostile boxes; those that would run something make the file `mark`."""
  code = [text.format(mark=mark) if "{mark}" in text or "{{" in text else text for text in CODE]
  return [*(f"\\boxed{{{text}}}" for text in (*HUNG, *code)), *LONG]


def noise(seed: int, length: int) -> str:
  """Returns a text of pieces that mean something to who reads boxes."""
  pieces = [
    "\\boxed{",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "\\{",
    "\\}",
    "\\frac",
    "\\sqrt",
    "^",
    "_",
    "1",
    "23",
    "x",
    ",",
    " ",
  ]
  pieces += [
    "\\text{",
    "cm",
    "\\%",
    "$",
    "\\pm",
    "\\cup",
    "\\\\",
    "&",
    "=",
    "\\begin{pmatrix}",
    "\\end{pmatrix}",
    "\0",
    "\u0663",
  ]
  return "".join(random.Random(seed).choices(pieces, k=length))
