import { describe, expect, test } from "vitest";
import { Http } from "./http.ts";
import { answerOf, marksOf, messagesOf, type Marks } from "./template.ts";

interface Said {
  readonly role: string;
  readonly content: string;
}

/** Templates as models bring them. */
const TEMPLATES: Record<string, (messages: Said[]) => string> = {
  chatml: (messages) =>
    `${messages.map(({ role, content }) => `<|im_start|>${role}\n${content}<|im_end|>\n`).join("")}<|im_start|>assistant\n`,
  tinystories: (messages) =>
    `${messages
      .map(({ role, content }) => {
        if (role === "system") return `System: ${content}`;
        return role === "user" ? `User: ${content}` : `Assistant: ${content}<|end|>`;
      })
      .join("\n\n")}\n\nAssistant:`,
  world: (messages) =>
    `${messages.map(({ role, content }) => `${role === "user" ? "User" : "Assistant"}: ${content}\n\n`).join("")}Assistant:`,
};
const ENDS: Record<string, string[]> = { chatml: ["<|im_end|>"], tinystories: ["<|end|>"], world: [] };

/** A server whose tokens are characters. */
function server(name: string, refusesSystem = false): Http {
  const answer = (body: object, status = 200): Response => new Response(JSON.stringify(body), { status });
  return new Http("", "", async (input, init) => {
    const path = String(input);
    if (path === "/tokenizer_info") {
      const ends = ENDS[name]!;
      return answer({ special_tokens: Object.fromEntries(ends.entries()), eos_token_ids: ends.map((_, id) => id) });
    }
    const body = JSON.parse(String(init?.body)) as { messages?: Said[]; tokens?: number[] };
    if (body.tokens) return answer({ prompt: String.fromCodePoint(...body.tokens) });
    if (refusesSystem && body.messages!.some((one) => one.role === "system")) {
      return answer({ error: { message: "no system messages" } }, 400);
    }
    return answer({ tokens: [...TEMPLATES[name]!(body.messages!)].map((one) => one.codePointAt(0)!) });
  });
}

describe.each(Object.keys(TEMPLATES))("the template %s", (name) => {
  const render = TEMPLATES[name]!;
  const user = { role: "user", content: "Who is there?" };
  const answered = [user, { role: "assistant", content: "A fox." }, { role: "user", content: "And now?" }];

  test("a first message is found in what was made of it", async () => {
    expect(messagesOf(render([user]), await marksOf(server(name)))).toEqual([{ role: "user", text: "Who is there?" }]);
  });

  test("a whole conversation that came as one is taken apart", async () => {
    expect(messagesOf(render(answered), await marksOf(server(name)))).toEqual([
      { role: "user", text: "Who is there?" },
      { role: "assistant", text: "A fox." },
      { role: "user", text: "And now?" },
    ]);
  });

  test("a later message is found however much of the end before it the answer brought", async () => {
    const marks = await marksOf(server(name));
    for (let n = 0; n <= marks.next.length && marks.next.slice(n).trim().length > 3; n += 1) {
      const absorbed = `${marks.next.slice(n)}And now?${marks.answer}`;
      expect(messagesOf(absorbed, marks)).toEqual([{ role: "user", text: "And now?" }]);
    }
  });

  test("an answer is told without the token that ended it", async () => {
    const marks = await marksOf(server(name));
    for (const end of ["", ...ENDS[name]!]) expect(answerOf(` A fox.${end}`, marks)).toBe("A fox.");
  });

  test("a text that no template wrote stays a text", async () => {
    const text = "It was a dark night.";
    expect(messagesOf(text, await marksOf(server(name)))).toEqual([{ role: "text", text }]);
  });
});

test("a system message is one", async () => {
  const marks = await marksOf(server("tinystories"));
  const messages = [
    { role: "system", content: "Be brief." },
    { role: "user", content: "Who?" },
  ];
  expect(messagesOf(TEMPLATES["tinystories"]!(messages), marks)).toEqual([
    { role: "system", text: "Be brief." },
    { role: "user", text: "Who?" },
  ]);
});

test("a template that takes no system messages is one without their marks", async () => {
  const marks = await marksOf(server("chatml", true));
  expect(marks.system).toBeNull();
  expect(messagesOf(TEMPLATES["chatml"]!([{ role: "user", content: "Who?" }]), marks)).toEqual([
    { role: "user", text: "Who?" },
  ]);
});

test("without a template all is text", () => {
  const none: Marks = { opening: "", answer: "", next: "", system: null, ends: [] };
  expect(messagesOf("User: hello\n\nAssistant:", none)).toEqual([{ role: "text", text: "User: hello\n\nAssistant:" }]);
});
