// Small helpers for elements of the page.

/** Return the element with an id. */
export const at = (id) => document.getElementById(id);

/** Make an element. */
export function made(tag, name = "", text = undefined) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
}

/** Make a button; title says what it does, if its words do not. */
export function button(words, title, act) {
  const element = made("button", "", words);
  element.type = "button";
  if (title) element.title = title;
  element.addEventListener("click", act);
  return element;
}

/** Copy a text. Return whether that worked. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {  // no clipboard for pages of a server in the local network without TLS
    const field = made("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    const worked = document.execCommand("copy");
    field.remove();
    return worked;
  }
}

/** Save a text as a file in the user's downloads. */
export function download(name, text, type) {
  const link = made("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Return a count in words, such as "1,204 tokens". */
export function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}
