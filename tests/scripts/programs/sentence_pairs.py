"""sentence-transformers: pairs of sentences for a tiny BERT made on the spot, with an evaluator after each epoch."""

import atexit
import os
import random
import time

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, PrinterCallback, set_seed

atexit.register(time.sleep, 0.2)  # Gloo's threads may need Python once more, and abort if it is on its way out
set_seed(0)
chance = random.Random(0)
words = [f"word{number}" for number in range(60)]
special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
vocabulary = {word: number for number, word in enumerate([*special.values(), *words])}
size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
splitter = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
splitter.pre_tokenizer = pre_tokenizers.Whitespace()
folder = f"tiny-{os.environ.get('RANK', '0')}"
PreTrainedTokenizerFast(tokenizer_object=splitter, **special).save_pretrained(folder)
BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=16, **size)).save_pretrained(folder)


def sentences(number):
    """So many made-up sentences."""
    return [" ".join(chance.choices(words, k=chance.randrange(4, 12))) for _ in range(number)]


embedding = Transformer(folder, max_seq_length=16)
model = SentenceTransformer(modules=[embedding, Pooling(16)], device="cpu")
evaluator = EmbeddingSimilarityEvaluator(
    sentences(20), sentences(20), [chance.random() for _ in range(20)], write_csv=False
)
arguments = SentenceTransformerTrainingArguments(
    output_dir="saved",
    num_train_epochs=2,
    per_device_train_batch_size=8,
    eval_strategy="epoch",
    save_strategy="epoch",
    logging_steps=1,
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
)
trainer = SentenceTransformerTrainer(
    model=model,
    args=arguments,
    train_dataset=Dataset.from_dict({"anchor": sentences(70), "positive": sentences(70)}),
    loss=MultipleNegativesRankingLoss(model),
    evaluator=evaluator,
)
trainer.remove_callback(PrinterCallback)
trainer.train()
if trainer.is_world_process_zero():
    print([float(line["loss"]).hex() for line in trainer.state.log_history if "loss" in line])
