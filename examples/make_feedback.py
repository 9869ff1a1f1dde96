"""Write the instructions, preferences and prompts of the examples, all generated:
python examples/make_feedback.py [--output-dir DIR] [--times N]

instructions.jsonl  instructions about words and numbers, with responses
preferences.jsonl   two answers to a guest, of which the polite one was preferred, by topic
reviews.txt         the reviews of reviews.csv (make_labeled.py), one per line
openings.jsonl      openings of reviews, for a policy to continue
praise.jsonl        two continuations of an opening, of which the praise was preferred
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence

from _shared import StableRandom, distinct, write_files
from make_labeled import BLAME, PRAISE, THINGS
from make_labeled import texts as labeled_texts

WORDS = "apple river stone cloud garden tiger lamp window piano forest bread candle silver monday letter bridge music winter"
PLURALS = {"box": "boxes", "city": "cities", "day": "days", "fox": "foxes", "lady": "ladies", "cat": "cats", "dish": "dishes"}
OPPOSITES = {"hot": "cold", "big": "small", "open": "closed", "early": "late", "full": "empty", "wet": "dry", "new": "old"}


def instruction(rng: StableRandom) -> tuple[str, str]:
    """An instruction and its response."""
    first, second = rng.word(WORDS), rng.word(WORDS)
    low, high = rng.below(10), rng.below(10)
    adjective, noun = rng.choice(list(OPPOSITES)), rng.choice(list(PLURALS))
    return rng.choice(
        [
            (f"Repeat the word {first} {2 + low % 2} times.", " ".join([first] * (2 + low % 2))),
            (f"Which word comes first in a dictionary, {first} or {second}?", min(first, second)),
            (f"Join {first} and {second}.", f"{first} and {second}"),
            (f"Add {low} and {high}.", str(low + high)),
            (f"What is the opposite of {adjective} {first}?", f"{OPPOSITES[adjective]} {first}"),
            (f"Write the plural: one {noun}, {2 + low}", f"{2 + low} {PLURALS[noun]}"),
        ]
    )


TOPICS: Mapping[str, Sequence[str]] = {
    "room": ("The room is ready at three", "Your room is on the first floor"),
    "breakfast": ("Breakfast ends at ten", "We serve tea and coffee"),
    "train": ("The train leaves at noon", "The station is ten minutes away"),
    "garden": ("The garden is open all day", "The gate closes at nine"),
}
POLITE = (
    "Good morning. {}.",
    "Thank you for asking. {}.",
    "Of course. {}, and I can help you with that.",
    "{}, with pleasure.",
)
RUDE = (
    "{}. Can you not read?",
    "{}. Do not ask again.",
    "I told you already. {}. What else do you want from me?",
    "{}, obviously.",
)


def preference(rng: StableRandom) -> tuple[str, str]:
    """The topic, and two answers: a polite one and a rude one. Their lengths say nothing."""
    topic = rng.choice(list(TOPICS))
    polite, rude = rng.choice(POLITE), rng.choice(RUDE)
    chosen, rejected = polite.format(rng.choice(TOPICS[topic])), rude.format(rng.choice(TOPICS[topic]))
    return json.dumps({"topic": topic, "chosen": chosen, "rejected": rejected}), ""


def texts(times: int = 1) -> dict[str, str]:
    """The contents by file name."""
    instructions = distinct(instruction, 800 * times, StableRandom(1))
    lines = [json.dumps({"instruction": prompt, "output": response}) for prompt, response in instructions]
    preferences = [line for line, _ in distinct(preference, 200, StableRandom(2))]
    openings = [f"The {thing} was" for thing in THINGS.split()]
    praise = [
        json.dumps({"prompt": opening, "chosen": f" {good}.", "rejected": f" {bad}."})
        for opening in openings
        for good, bad in zip(PRAISE.split(), BLAME.split(), strict=True)
    ]
    reviews = [row["text"] for row in csv.DictReader(io.StringIO(labeled_texts()["reviews.csv"]))]
    return {
        "instructions.jsonl": "\n".join(lines) + "\n",
        "preferences.jsonl": "\n".join(preferences) + "\n",
        "reviews.txt": "\n".join(reviews) + "\n",
        "openings.jsonl": "".join(json.dumps({"prompt": opening}) + "\n" for opening in openings),
        "praise.jsonl": "\n".join(praise) + "\n",
    }


if __name__ == "__main__":
    write_files(__doc__, texts, "instructions")
