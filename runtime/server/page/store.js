// Saved conversations, in the browser's IndexedDB: a record for each conversation and one for each message, so that a
// long conversation is not written again with each answer.

const DATABASE = "hybridge";
const MOST_FOUND = 200;

/** Return the result of a request of IndexedDB. */
function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** Wait until a transaction is on the disk. */
function committed(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
  });
}

/** Conversations of this browser. Without a database (a private window) nothing is kept, and nothing fails. */
export class Store {
  constructor(database) {
    this.database = database;
    // Another tab may delete or renew the database, which waits until every connection is closed.
    if (database) database.onversionchange = () => database.close();
  }

  /** Open the database, or return a store that keeps nothing. */
  static async open() {
    try {
      const opening = indexedDB.open(DATABASE, 1);
      opening.onupgradeneeded = () => {
        opening.result.createObjectStore("chats", { keyPath: "id" });
        opening.result.createObjectStore("messages", { keyPath: "id" }).createIndex("chat", "chat");
      };
      return new Store(await result(opening));
    } catch {
      return new Store(null);
    }
  }

  get keeps() {
    return this.database !== null;
  }

  /** Return all conversations without their messages, the latest first. */
  async chats() {
    if (!this.keeps) return [];
    const chats = await result(this.database.transaction("chats").objectStore("chats").getAll());
    return chats.sort((a, b) => b.changed - a.changed);
  }

  /** Return a conversation's record, or undefined. */
  async chat(id) {
    return this.keeps ? result(this.database.transaction("chats").objectStore("chats").get(id)) : undefined;
  }

  /** Return the messages of a conversation, the oldest first. */
  async messages(chat) {
    if (!this.keeps) return [];
    const index = this.database.transaction("messages").objectStore("messages").index("chat");
    const messages = await result(index.getAll(chat));
    return messages.sort((a, b) => a.order - b.order);
  }

  /** Write a conversation's record and some of its messages, all or nothing. */
  async save(chat, messages = []) {
    if (!this.keeps) return;
    const transaction = this.database.transaction(["chats", "messages"], "readwrite");
    transaction.objectStore("chats").put(chat);
    for (const message of messages) transaction.objectStore("messages").put(message);
    await committed(transaction);
  }

  /** Delete messages, and write the conversation's record, which no longer chooses them. */
  async removeMessages(chat, ids) {
    if (!this.keeps) return;
    const transaction = this.database.transaction(["chats", "messages"], "readwrite");
    transaction.objectStore("chats").put(chat);
    for (const id of ids) transaction.objectStore("messages").delete(id);
    await committed(transaction);
  }

  /** Delete a conversation and its messages. */
  async remove(id) {
    if (!this.keeps) return;
    const transaction = this.database.transaction(["chats", "messages"], "readwrite");
    transaction.objectStore("chats").delete(id);
    const cursor = transaction.objectStore("messages").index("chat").openKeyCursor(id);
    cursor.onsuccess = () => {
      if (!cursor.result) return;
      transaction.objectStore("messages").delete(cursor.result.primaryKey);
      cursor.result.continue();
    };
    await committed(transaction);
  }

  /** Return the ids of conversations with words in their title or in a message, each with a piece of the text around them. */
  async search(words, signal) {
    const wanted = words.toLowerCase(), found = new Map();
    for (const chat of await this.chats()) if (chat.title.toLowerCase().includes(wanted)) found.set(chat.id, "");
    if (!this.keeps) return found;
    const cursor = this.database.transaction("messages").objectStore("messages").openCursor();
    await new Promise((resolve, reject) => {
      cursor.onerror = () => reject(cursor.error);
      cursor.onsuccess = () => {
        const at = cursor.result;
        if (!at || signal.aborted || found.size >= MOST_FOUND) return resolve();
        const { chat, content } = at.value, place = content.toLowerCase().indexOf(wanted);
        if (place >= 0 && !found.get(chat)) found.set(chat, content.slice(Math.max(0, place - 30), place + wanted.length + 60));
        at.continue();
      };
    });
    return found;
  }
}
