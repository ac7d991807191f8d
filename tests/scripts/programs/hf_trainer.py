"""Hugging Face Trainer: a tiny BERT made on the spot, evaluated and saved after each epoch."""

import atexit
import time

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

atexit.register(time.sleep, 0.2)  # Gloo's threads may need Python once more, and abort if it is on its way out
set_seed(0)


class Sentences(Dataset):
    """Forty made-up sentences of twelve words."""

    def __init__(self):
        self.words = torch.randint(0, 50, (40, 12))

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        words = self.words[index]
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words.sum() % 2}


size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
model = BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=16, **size))
arguments = TrainingArguments(
    output_dir="saved",
    num_train_epochs=2,
    per_device_train_batch_size=3,
    per_device_eval_batch_size=10,
    gradient_accumulation_steps=2,
    eval_strategy="epoch",
    save_strategy="epoch",
    logging_steps=1,
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Sentences(), eval_dataset=Sentences())
trainer.remove_callback(PrinterCallback)
trainer.train()
if trainer.is_world_process_zero():
    print([float(line["loss"]).hex() for line in trainer.state.log_history if "loss" in line])
