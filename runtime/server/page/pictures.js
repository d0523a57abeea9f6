// Pictures for a message: read, made smaller if they are large, and kept as data: addresses.

import { made } from "./elements.js";

const TAKEN = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];
const LARGEST_FILE = 1_500_000, LARGEST_SIDE = 2048;

/** Return the files with pictures in what was dropped or pasted. */
export function picturesIn(transfer) {
  return [...(transfer?.files ?? [])].filter((file) => file.type.startsWith("image/"));
}

/** Return a picture as a data: address, within the size that a server takes. Throws Error for what cannot be read. */
export async function readPicture(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name || "This file"} is no picture that this browser can read.`);
  }
  const scale = Math.min(1, LARGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  if (scale === 1 && file.size <= LARGEST_FILE && TAKEN.includes(file.type)) return dataOf(file);
  const canvas = made("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const pen = canvas.getContext("2d");
  pen.fillStyle = "white";  // JPEG has no transparency
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.9);
}

function dataOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

/** Return an element that shows a picture; remove: called if it is clicked away, left out if it stays. */
export function thumbnail(url, number, remove) {
  const frame = made("span", "picture"), image = made("img");
  image.src = url;
  image.alt = `Picture ${number}`;
  frame.append(image);
  if (remove) {
    const away = made("button", "away", "×");
    away.type = "button";
    away.setAttribute("aria-label", `Remove picture ${number}`);
    away.addEventListener("click", remove);
    frame.append(away);
  }
  return frame;
}
