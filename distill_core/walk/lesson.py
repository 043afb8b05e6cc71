"""A lesson of 45 minutes on the built-in teacher: what to press, what to predict first, what to see; three exercises, answers hidden.

Every figure here was measured with this program, one seed, at its defaults but for what the sentence names.
"""

from dataclasses import dataclass

from ..language import ENGLISH, Say, later
from .pieces import folded


@dataclass(frozen=True)
class Part:
    minutes: str
    title: str
    press: str
    predict: str
    see: str


PARTS = (
    Part(
        "0–5",
        later("The idea"),
        later("Nothing yet. Read the picture at the top and the first tokens in step 2 aloud."),
        later("The text says what came next. What does a teacher know beyond that?"),
        later("For each word the teacher names many that could have come, with a probability each. That is the lesson the student gets."),
    ),
    Part(
        "5–11",
        later("The cache"),
        later("Press Capture. When it is there, switch on 'Look into the cache, token by token'."),
        later("Of 2,048 tokens only 100 are kept for each position. How much of the teacher's belief is lost?"),
        later(
            "About one part in a thousand: the kept mass is 99.9 %. Find a place where the teacher is nearly sure, and one where it "
            "hesitates between names: both are worth learning."
        ),
    ),
    Part(
        "11–16",
        later("Temperature"),
        later("In step 5 move the temperature from 1 to 4, and read the kept mass. Then move it back to 1."),
        later("The cache stays the same. Will the same 100 tokens hold more of the belief at T = 4, or less?"),
        later("Far less: about 27 %. Heat spreads the belief over unlikely tokens, and most of those are in the tail."),
    ),
    Part(
        "16–25",
        later("Training"),
        later("Press Train, with the twin. It takes some minutes; talk about the charts while they grow."),
        later(
            "Two students, the same text, the same steps. One learns from the teacher, one from the bare text. Draw both lines on paper."
        ),
        later(
            "The thick line falls towards its floor. On held-out text both students improve; the twin stays above: at the end it needs "
            "0.44 bits per byte, the student 0.39, the teacher 0.24. Both read the same text; only one was told what else could have "
            "come."
        ),
    ),
    Part(
        "25–30",
        later("Judging"),
        later("Press Judge. Read the samples first, then the table."),
        later("Who wrote which sample? How much worse than its teacher is a student of a fifth of its size?"),
        later(
            "The student chooses the teacher's own first word in 79 % of places, its twin in 70 %. The verdict compares each at its "
            "best weights, with an interval: a gain counts only beyond it."
        ),
    ),
    Part(
        "30–40",
        later("Your own experiment"),
        later("Choose one of the exercises below, write down what you expect, change that one setting, and train again."),
        later("Half of the class takes 100 windows, half takes 1,600: where does the teacher help more?"),
        later("Open the answers only when your own figures are there."),
    ),
    Part(
        "40–45",
        later("Taking it home"),
        later("Press Export, and open the model card in the folder."),
        later("What would a stranger need to know before using your student?"),
        later("Teacher, text, K, temperature, kept mass, and the measured quality: a model without them is a rumour."),
    ),
)

EXERCISES: tuple[tuple[str, str], ...] = (
    (
        later(
            "Little text: set the windows to train on to 100, capture and train again. Which way does the twin's held-out line go after "
            "step 200? Does the teacher help more than with 400 windows, or less? And with 1,600?"
        ),
        later(
            "The twin turns: 0.68 bits per byte at step 180, its best, but 1.04 at the end, for it learns its text by heart. The "
            "student stays between 0.54 and 0.55: the teacher's doubts keep it from being too sure. Best against best, the gain is "
            "about 0.15 bits per byte with 100 windows, 0.05 with 400, and 0.02 with 1,600."
        ),
    ),
    (
        later("Heat: go back to 400 windows, set the temperature to 4 and train again. Is the student better or worse than at 1?"),
        later(
            "Worse: 0.53 bits per byte instead of 0.39, and the teacher's own first word in 65 % of places instead of 79 %. At T = 4 "
            "the cache holds 27 % of the belief; of the other 73 % the student learns the sum only, and it works on words that hardly "
            "ever come."
        ),
    ),
    (
        later(
            "The floor: at temperature 4, let what K leaves out be 'left out (drop)', train for 5 steps, and look at the dashed floor. "
            "How can the lowest possible loss be below 0?"
        ),
        later(
            "The floor lies at -5.5. The cache holds only 27 % of the belief at T = 4; a student that gives nothing to all other tokens "
            "is told that it is better than its teacher. With the tail as one entry the floor is 0, and only the teacher's own belief "
            "reaches it."
        ),
    ),
)


def lesson(*, say: Say = ENGLISH) -> str:
    """The whole lesson behind one title, as HTML."""
    parts = "".join(
        f"<li><p class='part'><span>{part.minutes} min</span> {say(part.title)}</p>"
        f"<p><b>{say('Do')}:</b> {say(part.press)}</p><p><b>{say('Predict')}:</b> {say(part.predict)}</p>"
        f"{folded(say('What you should see'), f'<p>{say(part.see)}</p>')}</li>"
        for part in PARTS
    )
    tasks = "".join(f"<li><p>{say(task)}</p>{folded(say('Answer'), f'<p>{say(answer)}</p>')}</li>" for task, answer in EXERCISES)
    inside = (
        f"<p>{say('For a class, or for one: with the built-in teacher, on two cores. Write your predictions down before you press.')}</p>"
        f"<ol>{parts}</ol><p class='part'>{say('Three exercises')}</p><ol>{tasks}</ol>"
    )
    return f'<div lang="{say.code}">{folded(say("A lesson of 45 minutes"), inside, kind="walk-lesson")}</div>'
