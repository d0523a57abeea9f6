// The search runs in a worker, which browsers refuse to pages from the disk. There a frame takes the worker's place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.appendChild(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.inside.importScripts = (...urls) => Promise.all(urls.map(each => this.load(each)))
      this.ready = this.load(url)
    }

    load(url) {
      return new Promise((done, failed) => {
        const script = this.inside.document.createElement("script")
        script.src = url
        script.onload = done
        script.onerror = () => failed(new Error(`${url} does not load`))
        this.inside.document.documentElement.appendChild(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })))
    }

    terminate() {
      this.inside.frameElement.remove()
    }
  }
}
