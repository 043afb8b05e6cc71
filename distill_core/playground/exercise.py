"""The playground's short lesson: what to predict first, what to see, and one exercise whose answer is hidden."""

from ..language import ENGLISH, Say


def lesson_block(say: Say = ENGLISH) -> str:
    """As HTML. Its figures are properties that hold for any teacher, or are read off the page itself."""
    parts = (
        (
            say("Predict first"),
            say(
                "A cache keeps the teacher's K most likely tokens at every position. Raise the temperature T, and the same K tokens "
                "stay. Will they hold more of the teacher's belief, or less? Write down a guess for T = 2 before you move anything."
            ),
        ),
        (
            say("Then see"),
            say(
                "Move T from 1 to 2 to 4, and watch the last bar: it is all the tokens outside. Heat flattens the teacher's belief, "
                "and there are far more tokens outside than inside. Then click a word that surprised the teacher, and one that did not: "
                "where it is nearly sure, K hardly matters; where it hesitates, K is everything."
            ),
        ),
    )
    question = say(
        "Exercise: find a position and a T at which renormalize teaches the first token twice the probability that the teacher gives it. "
        "What is the kept mass there, and why could you have known without looking?"
    )
    answer = say(
        "It is 50 %. Renormalize divides by the kept mass m, so the factor is 1/m: twice means m = 1/2. The same factor stands in the "
        "sentence below the chart. Bucket has no such factor at any m: it keeps the rest as one entry of its own."
    )
    blocks = "".join(f"<p><b>{title}.</b> {words}</p><br>" for title, words in parts)
    return (
        f'<div class="walk-aside" lang="{say.code}">{blocks}<p>{question}</p>'
        f"<details><summary>{say('Show the answer')}</summary><p>{answer}</p></details></div>"
    )
