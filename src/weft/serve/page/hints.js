// Words for the forms: examples and options that only some tasks have. A task that is not listed works without them.

export const HINTS = {
  lm: { placeholder: "The beginning of a text" },
  seq2seq: { verb: "Predict" },
  classification: { verb: "Classify" },
  tagging: { verb: "Tag", placeholder: "Words, with spaces between them and before punctuation" },
  qa: { verb: "Answer" },
  "masked-lm": { verb: "Fill", placeholder: "A text with masks: the [MASK] eats fish", options: [["n_best", "Candidates", 5]] },
  denoising: { verb: "Restore" },
  asr: { verb: "Recognize" },
  captioning: { verb: "Describe" },
  "word-vectors": { verb: "Neighbors", placeholder: "A word, or an expression such as king - man + woman", options: [["num_neighbors", "Words", 10]] },
  "reward-model": { verb: "Reward" },
};

export const hintOf = (run) => HINTS[run.task] ?? {};

export const ACCEPT = { audio: "audio/*,.flac,.npy", image: "image/*,.npy", video: "video/*,image/gif,.zip,.npy", features: ".npy" };
