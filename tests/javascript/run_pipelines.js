// Print what pipelines of transformers.js give: node run_pipelines.js FOLDER_OF_MODELS < [{name, task, dtype, text}, ...]
import { readFileSync } from "node:fs";
import { env, pipeline } from "@huggingface/transformers";

env.allowRemoteModels = false;
env.localModelPath = process.argv[2];
const answers = [];
for (const { name, task, dtype, text } of JSON.parse(readFileSync(0, "utf8"))) {
  const run = await pipeline(task, name, { dtype });
  const answer = await run(text, task === "feature-extraction" ? { pooling: "mean" } : { top_k: 3 });
  answers.push(task === "feature-extraction" ? answer.tolist() : answer);
}
console.log(JSON.stringify(answers));
