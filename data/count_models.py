"""Count the parameters of every model in models.csv from its sizes, and write the column anew: python data/count_models.py

The other columns are written by hand, from each model's published config.json. No weights and no network: transformers builds each
model on the 'meta' device, where tensors have a shape and no memory. About 10 s.
"""

import csv
import io
from pathlib import Path

import torch
import transformers

TABLE = Path(__file__).parent / "models.csv"


def config_of(row: dict[str, str]) -> transformers.PreTrainedConfig:
    """The config that transformers makes of a row's sizes."""
    name = row["architecture"].replace("ForCausalLM", "Config").replace("LMHeadModel", "Config")
    kind = transformers.Gemma3TextConfig if name == "Gemma3Config" else getattr(transformers, name)
    sizes = {name: int(row[name]) for name in ("vocab_size", "hidden_size", "intermediate_size")}
    sizes |= {"num_hidden_layers": int(row["num_layers"]), "num_attention_heads": int(row["num_heads"])}
    sizes |= {"max_position_embeddings": int(row["max_positions"]), "tie_word_embeddings": row["tied_head"] == "true"}
    if int(row["num_experts"]):
        sizes["num_local_experts"] = int(row["num_experts"])
    config = kind(bos_token_id=0, eos_token_id=0, pad_token_id=0, **sizes)
    if hasattr(config, "num_key_value_heads"):
        config.num_key_value_heads = int(row["num_kv_heads"])
    if int(row["head_dim"]) * int(row["num_heads"]) != int(row["hidden_size"]) or hasattr(config, "head_dim"):
        config.head_dim = int(row["head_dim"])
    return config


def count(row: dict[str, str]) -> int:
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config_of(row))
    return sum(parameter.numel() for parameter in model.parameters())


def counted_table() -> str:
    """models.csv with its column num_parameters counted."""
    with open(TABLE, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    written = io.StringIO()
    writer = csv.DictWriter(written, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "num_parameters": count(row)} for row in rows)
    return written.getvalue()


if __name__ == "__main__":
    table = counted_table()
    changed = table != TABLE.read_text(encoding="utf-8")
    TABLE.write_text(table, encoding="utf-8")
    print(f"{TABLE.name}: {'written anew' if changed else 'unchanged'}, {table.count(chr(10)) - 1} models")
