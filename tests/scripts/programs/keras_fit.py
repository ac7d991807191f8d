"""Keras 3 on torch: its own loop and optimizer, validated after each epoch."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
numbers = rng.random((70, 8), dtype="float32")
classes = rng.integers(0, 3, 70)
model = keras.Sequential(
    [
        keras.layers.Input((8,)),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(3, activation="softmax"),
    ]
)
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
held_out = (numbers[:20], classes[:20])
history = model.fit(numbers, classes, batch_size=16, epochs=2, validation_data=held_out, verbose=0)
print([float(loss).hex() for loss in history.history["loss"] + history.history["val_loss"]])
