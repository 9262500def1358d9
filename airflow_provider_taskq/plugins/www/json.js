/** Checks and indents JSON texts without changing a digit. */

// A string, or a character between values.
const TOKENS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g;

/** The browser's message about a text that is not JSON; null if it is JSON or blank. */
export function jsonError(text) {
  if (!text.trim()) return null;
  try {
    JSON.parse(text);
    return null;
  } catch (error) {
    return error.message;
  }
}

/** The text with lines and indents. It works on tokens: JSON.parse would round 12345678901234567890. */
export function indent(text) {
  if (jsonError(text) !== null) return text;
  const tokens = text.match(TOKENS) ?? [];
  let depth = 0;
  // At most as deep as a push allows: the indents of 30,000 levels would take gigabytes.
  const line = () => `\n${"  ".repeat(Math.min(depth, 100))}`;
  const laid = tokens.map((token, place) => {
    const empty = (token === "{" && tokens[place + 1] === "}") || (token === "[" && tokens[place + 1] === "]");
    if (token === "{" || token === "[") {
      depth += 1;
      return empty ? token : token + line();
    }
    if (token === "}" || token === "]") {
      depth -= 1;
      return tokens[place - 1] === "{" || tokens[place - 1] === "[" ? token : line() + token;
    }
    return token === "," ? token + line() : token === ":" ? ": " : token;
  });
  return laid.join("");
}
