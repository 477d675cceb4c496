// One conformance case with a JavaScript client: node clients.mjs CASE. Prints what it found as one line of JSON.
// URL and KEY name the server.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const baseURL = process.env.URL + "/v1";
const apiKey = process.env.KEY;
const model = "smollm";
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "Weather in Rome?" }];

const weather = tool({
  description: "Of a city",
  inputSchema: z.object({ city: z.enum(["Rome", "Paris"]), days: z.number().int().min(1).max(9) }).strict(),
});

async function aiTool(languageModel) {
  const result = streamText({
    model: languageModel, messages, tools: { weather }, toolChoice: "required", temperature: 0, maxOutputTokens: 120,
    maxRetries: 0,
  });
  const parts = [];
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "tool-call") parts.push({ name: part.toolName, input: part.input });
  }
  return { calls: parts, finish: await result.finishReason, usage: await result.usage };
}

const cases = {
  async stream() {
    const asked = { model, messages, temperature: 0, max_completion_tokens: 8 };
    const final = await client.chat.completions.stream(asked).finalChatCompletion();
    const whole = await client.chat.completions.create(asked);
    return { streamed: final.choices[0].message.content, whole: whole.choices[0].message.content };
  },
  async embedding() {
    const asked = { model: "minilm", input: "Weather in Rome?" };
    const usual = await client.embeddings.create(asked); // asks for base64 by itself
    const plain = await client.embeddings.create({ ...asked, encoding_format: "float" });
    return { usual: usual.data[0].embedding, plain: plain.data[0].embedding };
  },
  async responses() {
    const stream = client.responses.stream({ model, input: "hi", temperature: 0, max_output_tokens: 500 });
    const kinds = [];
    for await (const event of stream) if (!kinds.includes(event.type)) kinds.push(event.type);
    return { kinds, text: (await stream.finalResponse()).output_text };
  },
  compatible: () => aiTool(createOpenAICompatible({ name: "bayard", baseURL, apiKey }).chatModel(model)),
  chat: () => aiTool(createOpenAI({ baseURL, apiKey }).chat(model)),
  aiResponses: () => aiTool(createOpenAI({ baseURL, apiKey }).responses(model)),
};

console.log(JSON.stringify(await cases[process.argv[2]]()));
