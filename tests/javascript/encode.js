// Print the ids that transformers.js makes: node encode.js FOLDER_OF_TOKENIZERS < {"names": [...], "texts": [...]}
import { readFileSync } from "node:fs";
import { AutoTokenizer, env } from "@huggingface/transformers";

env.allowRemoteModels = false;
env.localModelPath = process.argv[2];
const { names, texts } = JSON.parse(readFileSync(0, "utf8"));
const ids = {};
for (const name of names) {
  const tokenizer = await AutoTokenizer.from_pretrained(name);
  ids[name] = texts.map((text) => tokenizer.encode(text));
}
console.log(JSON.stringify(ids));
