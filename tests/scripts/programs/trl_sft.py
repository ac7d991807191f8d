"""TRL: supervised fine-tuning of a tiny GPT-2 made on the spot, evaluated and saved after each epoch."""

import atexit
import random
import time

from datasets import Dataset
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, PrinterCallback, set_seed
from trl import SFTConfig, SFTTrainer

atexit.register(time.sleep, 0.2)  # Gloo's threads may need Python once more, and abort if it is on its way out
set_seed(0)
chance = random.Random(0)
words = [f"word{number}" for number in range(60)]
special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "eos_token": "[EOS]"}
vocabulary = {word: number for number, word in enumerate([*special.values(), *words])}
splitter = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
splitter.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=splitter, **special)
model = GPT2LMHeadModel(GPT2Config(vocab_size=len(vocabulary), n_positions=32, n_embd=16, n_layer=2, n_head=2))


def sentences(number):
    """So many made-up sentences."""
    return Dataset.from_dict(
        {"text": [" ".join(chance.choices(words, k=chance.randrange(4, 12))) for _ in range(number)]}
    )


trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir="saved",
        num_train_epochs=2,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=10,
        gradient_accumulation_steps=2,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=1,
        max_length=32,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
    ),
    train_dataset=sentences(70),
    eval_dataset=sentences(20),
    processing_class=tokenizer,
)
trainer.remove_callback(PrinterCallback)
trainer.train()
if trainer.is_world_process_zero():
    print([float(line["loss"]).hex() for line in trainer.state.log_history if "loss" in line])
