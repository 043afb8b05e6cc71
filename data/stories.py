"""Print stories of the built-in generator: python data/stories.py --docs 5 --seed 1"""

import argparse

from storytelling import Story, stories, story

__all__ = ["Story", "stories", "story"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Print stories of the built-in generator.")
    parser.add_argument("--docs", type=int, default=10, help="how many stories (default %(default)s)")
    parser.add_argument("--seed", default="1", help="which stories; any word (default %(default)s)")
    parser.add_argument("--facts", action="store_true", help="also show -log p and the words that the story determines")
    arguments = parser.parse_args()
    for each in stories(arguments.docs, arguments.seed):
        print(each.text)
        if arguments.facts:
            determined = ", ".join(each.text[start:end] for start, end in each.determined)
            print(f"   {each.nats:.1f} nats, {len(each.text.split())} words; determined: {determined}")
        print()


if __name__ == "__main__":
    main()
