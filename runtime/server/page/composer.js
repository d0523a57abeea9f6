// The field for the next message: text, and pictures that are chosen, pasted or dropped.

import { at } from "./elements.js";
import { picturesIn, readPicture, thumbnail } from "./pictures.js";

const MOST_PICTURES = 64;

export class Composer {
  /** send: called with the text and the pictures; it returns whether it took them. failed: called with words of an error. */
  constructor(send, failed) {
    Object.assign(this, { send, failed, pictures: [], takesPictures: true });
    const field = this.field = at("text");
    field.value = sessionStorage.getItem("draft") ?? "";
    field.addEventListener("input", () => this.resized());
    field.addEventListener("keydown", (event) => {
      // A phone's keyboard has no Shift with Enter: there the button sends.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || matchMedia("(pointer: coarse)").matches) return;
      event.preventDefault();
      at("form").requestSubmit();
    });
    field.addEventListener("paste", (event) => this.take(event, event.clipboardData));
    at("form").addEventListener("submit", (event) => {
      event.preventDefault();
      if ((field.value.trim() || this.pictures.length) && this.send(field.value, this.pictures)) this.set("", []);
    });
    at("attach").addEventListener("click", () => at("files").click());
    at("files").addEventListener("change", () => {
      this.addFiles([...at("files").files]);
      at("files").value = "";
    });
    this.listenToDrops();
    this.resized();
  }

  /** Put a message into the field. */
  set(text, pictures) {
    this.field.value = text;
    this.pictures = pictures;
    this.drawPictures();
    this.resized();
  }

  /** Take a picture out of a paste or drop; a text goes its usual way. */
  take(event, transfer) {
    const files = picturesIn(transfer);
    if (!files.length) return;
    event.preventDefault();
    this.addFiles(files);
  }

  listenToDrops() {
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    const mark = (isOver) => document.body.classList.toggle("dropping", isOver);
    addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      mark(true);
    });
    addEventListener("dragleave", (event) => { if (!event.relatedTarget) mark(false); });
    addEventListener("drop", (event) => {
      mark(false);
      if (!hasFiles(event)) return;
      event.preventDefault();  // otherwise the browser would leave the page and open the file
      if (picturesIn(event.dataTransfer).length) this.take(event, event.dataTransfer);
      else this.failed("Only pictures can be dropped here.");
    });
  }

  async addFiles(files) {
    if (!this.takesPictures) return this.failed("This model takes no pictures.");
    for (const file of files) {
      if (this.pictures.length === MOST_PICTURES) return this.failed(`A message takes at most ${MOST_PICTURES} pictures.`);
      try {
        const picture = await readPicture(file);
        this.pictures = [...this.pictures, picture];
      } catch (error) {
        this.failed(error.message);
      }
      this.drawPictures();
    }
  }

  drawPictures() {
    const remove = (i) => {
      this.pictures = this.pictures.toSpliced(i, 1);
      this.drawPictures();
      this.field.focus();
    };
    at("pictures").replaceChildren(...this.pictures.map((url, i) => thumbnail(url, i + 1, () => remove(i))));
  }

  resized() {
    sessionStorage.setItem("draft", this.field.value.slice(0, 100_000));
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight + 2, innerHeight * 0.4)}px`;
  }
}
