"""TRL: GRPO, which generates completions, rewards them, and learns from them in two steps."""

import atexit
import random
import time

from datasets import Dataset
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, PrinterCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

atexit.register(time.sleep, 0.2)  # Gloo's threads may need Python once more, and abort if it is on its way out
set_seed(0)
chance = random.Random(0)
words = [f"word{number}" for number in range(60)]
special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "eos_token": "[EOS]", "bos_token": "[BOS]"}
vocabulary = {word: number for number, word in enumerate([*special.values(), *words])}
splitter = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
splitter.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=splitter, padding_side="left", **special)
model = GPT2LMHeadModel(GPT2Config(vocab_size=len(vocabulary), n_positions=32, n_embd=16, n_layer=2, n_head=2))
model.config.pad_token_id = tokenizer.pad_token_id
model.generation_config.eos_token_id = tokenizer.eos_token_id


def even(completions, **_):
    """The share of words with an even number."""
    return [sum(word[-1:] in "02468" for word in one.split()) / max(1, len(one.split())) for one in completions]


prompts = Dataset.from_dict({"prompt": [" ".join(chance.choices(words, k=4)) for _ in range(32)]})
trainer = GRPOTrainer(
    model=model,
    reward_funcs=even,
    args=GRPOConfig(
        output_dir="saved",
        num_train_epochs=2,
        per_device_train_batch_size=8,
        num_generations=4,
        steps_per_generation=2,
        gradient_accumulation_steps=1,
        max_completion_length=8,
        save_strategy="epoch",
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
    ),
    train_dataset=prompts,
    processing_class=tokenizer,
)
trainer.remove_callback(PrinterCallback)
trainer.train()
if trainer.is_world_process_zero():
    print([float(line["loss"]).hex() for line in trainer.state.log_history if "loss" in line])
